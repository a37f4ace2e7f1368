"""Playbook: results are wrong without being infinite: a jump of the loss or gradient norm, digests that differ.

As for NaN, later states are suspect. Every machine computes a fixed product and one step of the same small model;
the odd one is evicted. When all agree, dual-phase replay decides. Without an approval or a standby the job runs on.
So it does where the numbers jump again at the step of an earlier search that found no machine: it is the data.
"""

from holdfast.tasks.diagnose import diagnose
from holdfast.tasks.escalation import escalate
from holdfast.tasks.evict import evict
from holdfast.tasks.jumped_again import must_not_be_of_data
from holdfast.tasks.odd_replica import spared
from holdfast.tasks.pause import pause
from holdfast.tasks.permit import permitted
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resume import resume
from holdfast.tasks.standby import replenish, swap_in
from holdfast.tasks.suspect import mark_suspect


@playbook(would="stop the job, compare what machines compute, and resume from the last good step")
async def silent_corruption(case: RecoveryContext) -> Recovered:
    """Recover a job on which a machine computes wrong results."""
    must_not_be_of_data(case)
    await permitted(case)
    await pause(case)
    await mark_suspect(case, "results are wrong since then")
    verdict = await diagnose(case)
    tried = await escalate(case, verdict, "computes wrong results")

    await evict(case, tried.verdict.suspects, "computes wrong results")
    await swap_in(case)
    resumed = await resume(case)
    await replenish(case)
    return Recovered(summary=f"{spared(case)}{tried.summary}; {resumed.summary}", verdict=tried.verdict)
