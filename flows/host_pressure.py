"""Playbook: a host's memory or processors ran out, and a rank failed for it.

Something else on the host, or a leak of the job's own: a retry in place frees what the ranks held. When it comes
again without progress the machine goes, for this job only; after that the code is the suspect.
"""

from holdfast.tasks.diagnose import diagnose
from holdfast.tasks.escalation import escalate
from holdfast.tasks.evict import evict
from holdfast.tasks.pause import pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resume import resume
from holdfast.tasks.standby import replenish, swap_in


@playbook(would="stop the job, inspect the host, and retry in place; evict the host if it happens again")
async def host_pressure(case: RecoveryContext) -> Recovered:
    """Recover a job whose host ran out of memory or processors."""
    await pause(case)
    verdict = await diagnose(case)
    tried = await escalate(case, verdict, "is still under pressure")

    await evict(case, tried.verdict.suspects, tried.did)
    await swap_in(case)
    resumed = await resume(case)
    await replenish(case)
    return Recovered(summary=f"{tried.summary}; {resumed.summary}", verdict=tried.verdict)
