"""Playbook: a machine's mount is gone or hangs, or its disk is full.

Looked at again with the job stopped: storage that all machines share comes back or not, and no machine is at fault;
a mount that only one machine misses is that machine's, which is evicted.
"""

from holdfast.tasks.diagnose import diagnose
from holdfast.tasks.escalation import escalate
from holdfast.tasks.evict import evict
from holdfast.tasks.pause import pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resume import resume
from holdfast.tasks.services import await_healthy
from holdfast.tasks.standby import replenish, swap_in


@playbook(would="stop the job, evict the machine whose storage fails, or wait for storage that all share")
async def storage_fault(case: RecoveryContext) -> Recovered:
    """Recover a job whose storage fails."""
    await pause(case)
    shared = await await_healthy(case)
    verdict = await diagnose(case)
    tried = await escalate(case, verdict, "has failing storage")

    await evict(case, tried.verdict.suspects, tried.did)
    await swap_in(case)
    resumed = await resume(case)
    await replenish(case)
    return Recovered(summary=f"{shared}{tried.summary}; {resumed.summary}", verdict=tried.verdict)
