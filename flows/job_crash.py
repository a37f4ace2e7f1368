"""Playbook: a rank exited, and nothing names a culprit.

Stop, look for a faulty machine in tiers, then climb the ladder: retry in place, roll the code back, replay.
Order of the rungs: ByteDance, arXiv 2509.16293, stop-time checks; the policy file may set another order.

A first death whose other ranks keep their processes is retried at once, with the same tiers beside the training: a
machine that they accuse is evicted at the next step boundary.
"""

from holdfast.tasks.beside import restart_and_diagnose
from holdfast.tasks.diagnose import diagnose
from holdfast.tasks.escalation import escalate
from holdfast.tasks.evict import evict
from holdfast.tasks.pause import pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resume import resume
from holdfast.tasks.standby import replenish, swap_in


@playbook(would="stop the job, diagnose, and climb the ladder from a retry in place")
async def job_crash(case: RecoveryContext) -> Recovered:
    """Recover a job after a rank's exit whose cause is unknown."""
    await pause(case)
    beside = await restart_and_diagnose(case)
    if beside and beside.trains:
        await replenish(case)
        return Recovered(summary=beside.summary, verdict=beside.verdict)

    case, verdict = (beside.case, beside.verdict) if beside else (case, await diagnose(case))
    tried = await escalate(case, verdict)

    await evict(case, tried.verdict.suspects, tried.did, tried.scope)
    await swap_in(case)
    resumed = await resume(case)
    await replenish(case)
    return Recovered(summary=f"{tried.summary}; {resumed.summary}", verdict=tried.verdict)
