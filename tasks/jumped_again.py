"""Jumps of the loss that come again at one step of the training: the data that is read there makes them, no machine."""

from __future__ import annotations

from holdfast.errors import LimitError
from holdfast.models.alert import Incident, IncidentClass, IncidentState
from holdfast.policies.classify.signature import same_step
from holdfast.tasks import history, late
from holdfast.tasks.recovery_context import RecoveryContext


def must_not_be_of_data(case: RecoveryContext) -> None:
    """Refuse to stop a job for a jump at the step of an earlier one for which it was stopped and no machine found.

    Not where the job file allows to skip that data, nor where a machine surely fails.

    Raises:
        LimitError: it comes from the data; the job runs on.
    """
    ctx, job = case.ctx, case.job_now()
    epochs = ctx.ledger.epochs(case.job)
    now = history.signature_of(ctx, case.incident, epochs)
    if case.stands or not now.jumped or late.roots(case):
        return
    skipped = ctx.ledger.skipped_steps(case.job)
    if job.spec.skip_bad_batches > len(skipped) and (now.position.step or 0) + 1 not in skipped:
        return
    past = [each for each in history.since_fresh(ctx, case.incident, epochs) if _found_nothing(case, each)]
    same = [each for each in past if same_step(history.signature_of(ctx, each, epochs), now)]
    if same:
        raise LimitError(
            f"{now.said} came after step {now.position.step} again, as in {same[-1].id}, for which no machine was "
            "found at fault: the data that is read there is a suspect, and the job is not stopped for it again"
        )


def _found_nothing(case: RecoveryContext, past: Incident) -> bool:
    """Return whether the job was stopped for an earlier incident of wrong numbers, and no machine evicted."""
    searched = (
        past.incident_class is IncidentClass.SILENT_CORRUPTION and past.state is IncidentState.RECOVERED
    )
    return searched and "evict" not in {each.kind for each in case.ctx.ledger.actions(past.id)}
