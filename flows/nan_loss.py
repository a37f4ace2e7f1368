"""Playbook: loss or gradient norm is not finite.

Saved states from after the first bad step are suspect. Bit-wise alignment (the same small step on every machine)
comes before anything is run again; when no check names a machine, dual-phase replay looks for the one that computes
wrongly (ByteDance, arXiv 2509.16293). Training goes on from the last step known good.
"""

from holdfast.tasks.diagnose import diagnose
from holdfast.tasks.escalation import escalate
from holdfast.tasks.evict import evict
from holdfast.tasks.pause import pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resume import resume
from holdfast.tasks.standby import replenish, swap_in
from holdfast.tasks.suspect import mark_suspect


@playbook(would="stop the job, diagnose, replay, and resume from the last good step")
async def nan_loss(case: RecoveryContext) -> Recovered:
    """Recover a job whose loss or gradient norm is not finite."""
    await pause(case)
    await mark_suspect(case, "loss or gradient norm not finite")
    verdict = await diagnose(case)
    tried = await escalate(case, verdict, "evicted: computes wrong results")

    await evict(case, tried.verdict.suspects, "computes wrong results", tried.scope)
    await swap_in(case)
    resumed = await resume(case)
    await replenish(case)
    return Recovered(summary=f"{tried.summary}; {resumed.summary}", verdict=tried.verdict)
