"""Playbook: a network interface or link of the job went down twice, flaps, or loses packets.

NICs and switches often come back alone, so the job is first retried in place once the transfers through every
interface and between neighbours succeed; a machine whose own transfers fail is evicted (ByteDance, arXiv
2509.16293). Several machines of one switch are not evicted: the switch is at fault.
"""

from holdfast.tasks.diagnose import diagnose
from holdfast.tasks.escalation import escalate
from holdfast.tasks.evict import evict
from holdfast.tasks.pause import pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resume import resume
from holdfast.tasks.standby import replenish, swap_in


@playbook(would="stop the job, test every interface and link, and evict the machine that fails")
async def network_fault(case: RecoveryContext) -> Recovered:
    """Recover a job with a broken link."""
    await pause(case)
    verdict = await diagnose(case)
    tried = await escalate(case, verdict, "has a broken link")

    await evict(case, tried.verdict.suspects, tried.did)
    await swap_in(case)
    resumed = await resume(case)
    await replenish(case)
    return Recovered(summary=f"{tried.summary}; {resumed.summary}", verdict=tried.verdict)
