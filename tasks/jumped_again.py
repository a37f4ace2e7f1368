"""Jumps of the loss for which a job is not stopped again: they come at one step, or searches for a machine found none.

At one step it is the data that is read there. At others it is the training itself (a rate that is too high, rare data):
what two searches did not find, a third does not find, and large models jump every few hours for weeks.
"""

from __future__ import annotations

from holdfast.errors import LimitError
from holdfast.models.alert import Incident, IncidentClass, IncidentState
from holdfast.policies.classify.signature import same_step
from holdfast.policies.escalate.searched import FOR_S
from holdfast.tasks import history, late
from holdfast.tasks.recovery_context import RecoveryContext

_SEARCHES = 2
"""Searches that found no machine, after which a job is not stopped for another jump."""


def must_not_be_of_data(case: RecoveryContext) -> None:
    """Refuse to stop a job for a jump that earlier searches, with the job stopped, found no machine for.

    One search where it comes at the same step, unless the job file allows to skip that data; two within a day else. Not
    where a machine surely fails.

    Raises:
        LimitError: it comes from the data, or from the training; the job runs on.
    """
    ctx, job = case.ctx, case.job_now()
    epochs = ctx.ledger.epochs(case.job)
    now = history.signature_of(ctx, case.incident, epochs)
    if case.stands or not now.jumped or late.roots(case):
        return
    skipped = ctx.ledger.skipped_steps(case.job)
    may_skip = job.spec.skip_bad_batches > len(skipped) and (now.position.step or 0) + 1 not in skipped
    past = [each for each in history.since_fresh(ctx, case.incident, epochs) if _found_nothing(case, each)]
    known = {each.id: history.signature_of(ctx, each, epochs) for each in past}
    same = [each for each in past if same_step(known[each.id], now)]
    if same and not may_skip:
        raise LimitError(
            f"{now.description} came after step {now.position.step} again, as in {same[-1].id}, for which no machine "
            "was found at fault: the data that is read there is a suspect, and the job is not stopped for it again"
        )
    since = case.incident.opened_at - FOR_S
    lately = [each for each in past if known[each.id].jumped and each.opened_at >= since]
    if not same and len(lately) >= _SEARCHES:
        raise LimitError(
            f"{now.description} again, after {len(lately)} searches within a day that found no machine at fault, the "
            f"last one in {lately[-1].id}: the job is not stopped for another one. Look at its data and learning rate; "
            "`holdfast evict MACHINE` takes out one that you suspect"
        )


def _found_nothing(case: RecoveryContext, past: Incident) -> bool:
    """Return whether the job was stopped for an earlier incident of wrong numbers, and no machine evicted."""
    searched = (
        past.incident_class is IncidentClass.SILENT_CORRUPTION and past.state is IncidentState.RECOVERED
    )
    return searched and "evict" not in {each.kind for each in case.ctx.ledger.actions(past.id)}
