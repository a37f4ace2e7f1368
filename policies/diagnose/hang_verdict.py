"""The verdict on a job that hangs: of the stacks of its ranks, and of the records of their collectives."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.models.agent import FlightRecord, StackDump
from holdfast.models.alert import Verdict
from holdfast.models.job import Job
from holdfast.policies.config.diagnosis import AggregatePolicy
from holdfast.policies.diagnose import aggregate, flight, groups
from holdfast.policies.diagnose.aggregate import Aggregation
from holdfast.policies.join_names import join_names


def needs_records(found: Aggregation, silent: Sequence[str]) -> bool:
    """Return whether the records of collectives can change what the stacks say.

    Args:
        found: what they say.
        silent: machines whose agent does not answer.
    """
    return not (found.sure or found.explained or (len(found.suspects) == 1 and silent))


def verdict(  # noqa: PLR0917
    found: Aggregation,
    stacks: Sequence[StackDump],
    records: Sequence[FlightRecord],
    job: Job,
    limits: AggregatePolicy,
    blocked: Collection[int] = (),
    silent: Sequence[str] = (),
) -> Verdict:
    """Return who is suspected.

    When the stacks prove nothing, records may name a rank where the stacks name none, or show that the program is at
    fault and not the machine whose ranks stand out.

    Args:
        found: what the ``stacks`` say by themselves.
        stacks: of all ranks and their children.
        records: of the ranks' collectives, where :func:`needs_records`.
        job: the job.
        limits: how far ranks may differ.
        blocked: as :func:`holdfast.policies.diagnose.aggregate.aggregate` takes it.
        silent: machines whose agent does not answer.
    """
    made = groups.observed((record.ranks for record in records), job.spec.world_size)
    if made and len(found.suspects) != 1 and not found.explained:
        found = aggregate.aggregate(stacks, job, limits, blocked, made)
    waiting = {rank for group in found.groups if group.waiting for rank in group.ranks}
    recorded = flight.analyse(records, job, limits, waiting)
    if victims := sorted({*found.unseen} & {*recorded.waiting}):
        found = aggregate.aggregate(stacks, job, limits, blocked, made, wait=victims)
        reason = f"ranks {join_names(victims)}, of which no stack could be taken, wait as their records show"
        found = found.model_copy(update={"reasons": (reason, *found.reasons)})
    suspects, reasons, ranks, script = found.suspects, found.reasons, found.outliers, found.script
    if silent and not found.sure:
        suspects = ()  # the others stand out because they wait for them
    elif not found.explained and (not suspects or (recorded.program and not found.sure)):
        suspects, reasons, ranks = recorded.suspects, (*reasons, *recorded.reasons), recorded.behind
        script = script or recorded.program
    return Verdict(
        suspects=tuple(dict.fromkeys((*silent, *suspects))),
        confidence=1.0 if silent else found.confidence,
        ranks=ranks if suspects else (),
        sure=bool(silent) or found.sure,
        explained=found.explained and not silent,
        evidence=(*(f"agent on {name} does not answer" for name in silent), *reasons),
        script="" if silent or found.sure else script,
        excuse="" if silent or suspects != found.suspects else found.excuse,
    )
