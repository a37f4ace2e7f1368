"""Playbook: loss or gradient norm is not finite.

Saved states from after the first bad step are suspect. When no check names a machine, dual-phase replay looks
for the one that computes wrongly; training goes on from the last step known good.
"""

from holdfast.errors import LimitError
from holdfast.tasks.case import Case
from holdfast.tasks.diagnose import diagnose
from holdfast.tasks.evict import evict
from holdfast.tasks.pause import pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.replay import replay
from holdfast.tasks.resume import resume
from holdfast.tasks.standby import replenish, swap_in
from holdfast.tasks.suspect import mark_suspect


@playbook(would="stop the job, diagnose, replay, and resume from the last good step")
async def nan_loss(case: Case) -> Recovered:
    """Recover a job whose loss or gradient norm is not finite."""
    await pause(case)
    await mark_suspect(case, "loss or gradient norm not finite")
    verdict = await diagnose(case)
    if not verdict.suspects:
        verdict = await replay(case)
    if not verdict.suspects and case.again:
        raise LimitError("not finite again, and replay accuses no machine: look at code and data")

    await evict(case, verdict.suspects, "computes wrong results")
    await swap_in(case)
    resumed = await resume(case)
    await replenish(case)
    did = "evicted: computes wrong results" if verdict.suspects else "not reproduced; retried"
    return Recovered(summary=f"{verdict.named} {did}; {resumed.said}", verdict=verdict)
