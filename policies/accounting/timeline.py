"""Conversion of a job's history in the ledger to spans of its time: work, incident phases, waiting.

Each instant gets one label (:mod:`holdfast.policies.accounting.lost_time`). Precedence where spans overlap: a wait for
people; steps; the phases of the oldest open incident, of which the step begun last; then the tail of incidents
already closed; then spans that follow from the epochs alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from holdfast.models.alert import BESIDE_TRAINING, IncidentClass, IncidentState
from holdfast.models.job import JobState
from holdfast.policies.accounting.lost_time import LostPhase, Span
from holdfast.policies.accounting.sizes import Share, SizedEpoch, shares

# Priorities, greatest first.
_PEOPLE, _STEPS, _ACTING, _TAIL, _EPOCH = 5.0, 4.0, 3.0, 2.0, 1.0

PHASES: Mapping[str, LostPhase] = {
    "hold": LostPhase.PAUSING,
    "pause": LostPhase.PAUSING,
    "check": LostPhase.DIAGNOSING,
    "stacks": LostPhase.DIAGNOSING,
    "suspect": LostPhase.DIAGNOSING,
    "replay": LostPhase.DIAGNOSING,
    "first": LostPhase.DECIDING,
    "rung": LostPhase.DECIDING,
    "approve": LostPhase.WAITING,
    "evict": LostPhase.SWAPPING,
    "swap": LostPhase.SWAPPING,
    "update": LostPhase.SWAPPING,
    "rollback": LostPhase.SWAPPING,
    "start": LostPhase.RESTORING,
    "verify": LostPhase.RESTARTING,
}
"""Phase of each kind of action. A kind that is not listed is work on the cause: ``diagnosing``."""
ASIDE = frozenset({"replenish", "report", "choose", "bring", "hand_back", "starting"})
"""Actions beside or after the recovery, which does not wait for them."""

_STOPS = frozenset({"hold", "pause"})
_AFTER = {"start": LostPhase.RESTARTING, "verify": LostPhase.RECOMPUTING}


class EpochLike(SizedEpoch, Protocol):
    """The fields of :class:`~holdfast.models.history.Epoch` that are needed here."""

    @property
    def first_step(self) -> int | None: ...  # noqa: D102
    @property
    def first_step_at(self) -> float | None: ...  # noqa: D102
    @property
    def last_step(self) -> int | None: ...  # noqa: D102
    @property
    def last_step_at(self) -> float | None: ...  # noqa: D102


class StretchLike(Protocol):
    """The fields of :class:`~holdfast.models.history.Stretch` that are needed here."""

    @property
    def epoch(self) -> int: ...  # noqa: D102
    @property
    def first_step(self) -> int: ...  # noqa: D102
    @property
    def last_step(self) -> int: ...  # noqa: D102
    @property
    def begun_at(self) -> float: ...  # noqa: D102
    @property
    def ended_at(self) -> float: ...  # noqa: D102
    @property
    def stall_s(self) -> float: ...  # noqa: D102


class IncidentLike(Protocol):
    """The fields of :class:`~holdfast.models.alert.Incident` that are needed here."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def incident_class(self) -> str: ...  # noqa: D102
    @property
    def state(self) -> IncidentState: ...  # noqa: D102
    @property
    def epoch(self) -> int: ...  # noqa: D102
    @property
    def detected_at(self) -> float: ...  # noqa: D102
    @property
    def recovered_at(self) -> float | None: ...  # noqa: D102
    @property
    def closed_at(self) -> float | None: ...  # noqa: D102


class ActionLike(Protocol):
    """The fields of :class:`~holdfast.models.history.Action` that are needed here."""

    @property
    def incident_id(self) -> str: ...  # noqa: D102
    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def begun_at(self) -> float: ...  # noqa: D102
    @property
    def done_at(self) -> float | None: ...  # noqa: D102
    @property
    def waited_s(self) -> float: ...  # noqa: D102
    @property
    def result(self) -> Mapping[str, Any]: ...  # noqa: D102


class StateLike(Protocol):
    """The fields of :class:`~holdfast.models.history.StateChange` that are needed here."""

    @property
    def state(self) -> JobState: ...  # noqa: D102
    @property
    def at(self) -> float: ...  # noqa: D102


def work(
    epochs: Sequence[EpochLike],
    stretches: Sequence[StretchLike],
    causes: Mapping[str, str],
    sizes: Mapping[int, Share] | None = None,
) -> list[Span]:
    """Return spans in which steps were made, both new ones and ones that had been made before.

    Args:
        epochs: by number.
        stretches: from step reports; an epoch without any is taken as one even stretch.
        causes: incident id to class.
        sizes: of epochs, the share of the wanted machines that they ran on; those left out had all.
    """
    reported: dict[int, list[StretchLike]] = {}
    for stretch in stretches:
        reported.setdefault(stretch.epoch, []).append(stretch)
    typical = _typical_step(epochs)
    spans: list[Span] = []
    reached = 0
    for row in epochs:
        cause = causes.get(row.incident_id or "", "")
        rows = [
            _Part(s.first_step, s.last_step, s.begun_at, s.ended_at, s.stall_s)
            for s in reported.get(row.epoch, ())
        ]
        rows = rows or _whole(row, typical)
        for part in rows:
            spans += part.spans(reached, cause, (sizes or {}).get(row.epoch, Share()))
        reached = max([reached, *(part.last for part in rows)])
    return spans


def zeros(states: Sequence[StateLike], now: float) -> list[Span]:
    """Return spans in which the job was scaled to zero."""
    return [
        Span(change.at, following.at if following else now, LostPhase.ZERO, "", (_PEOPLE,))
        for change, following in zip(states, [*states[1:], None], strict=False)
        if change.state is JobState.SCALED_TO_ZERO
    ]


def waits(states: Sequence[StateLike], now: float, cause: str = "") -> list[Span]:
    """Return spans in which a person held the job, or had stopped it until it was resumed."""
    return [
        Span(change.at, following.at if following else now, LostPhase.WAITING, cause, (_PEOPLE,))
        for change, following in zip(states, [*states[1:], None], strict=False)
        if change.state in (JobState.PAUSED, JobState.STOPPED)
    ]


def incident_phases(
    incident: IncidentLike, actions: Iterable[ActionLike], since: float, now: float, order: int = 0
) -> list[Span]:
    """Return the phases of one incident, from ``since`` (when work stopped) to its first new step, or ``now``.

    Before the detection ``undetected``, then the phases of its actions, the one begun last where several overlap;
    ``deciding`` where no action runs; ``recomputing`` after the last. One that needs a human waits from its end on.
    """
    cause = str(incident.incident_class)
    end = now if incident.closed_at is None else incident.closed_at
    acts = _while_it_stood(
        sorted((row for row in actions if row.kind not in ASIDE), key=lambda r: r.begun_at)
    )
    last = max((row.done_at if row.done_at is not None else end for row in acts), default=end)
    # After the ranks' start nothing is left to do; once all made a step, only lost steps are computed again.
    tail = _AFTER.get(acts[-1].kind) if acts and acts[-1].done_at is not None else None
    base = (_ACTING, -order, 0.0, 0.0)
    spans = [
        Span(since, incident.detected_at, LostPhase.UNDETECTED, cause, base),
        Span(incident.detected_at, last if tail else end, LostPhase.DECIDING, cause, base),
    ]
    for row in acts:
        done = row.done_at if row.done_at is not None else end
        mine = (_ACTING, -order, row.begun_at, 0.0)
        spans.append(Span(row.begun_at, done, PHASES.get(row.kind, LostPhase.DIAGNOSING), cause, mine))
        if row.waited_s > 0:
            until = min(done, row.begun_at + row.waited_s)
            spans.append(Span(row.begun_at, until, LostPhase.WAITING, cause, (*mine[:3], 1.0)))
    if incident.state is IncidentState.NEEDS_HUMAN:
        spans.append(Span(end, now, LostPhase.WAITING, cause, (_TAIL,)))
    elif tail:
        recovered = incident.recovered_at
        spans.append(Span(last, now if recovered is None else recovered, tail, cause, (_TAIL,)))
    return [span for span in spans if span.end > span.begin]


def _while_it_stood(acts: Sequence[ActionLike]) -> list[ActionLike]:
    """Return the actions without the checks that were made beside the training: after a start that was seen to work."""
    found: list[ActionLike] = []
    trains_since: float | None = None
    for row in acts:
        if row.kind in _STOPS:
            trains_since = None
        if row.kind == "check" and trains_since is not None and row.begun_at >= trains_since:
            continue
        if row.kind == "verify":
            trains_since = row.done_at
        found.append(row)
    return found


def spans(  # noqa: PLR0917
    epochs: Sequence[EpochLike],
    stretches: Sequence[StretchLike],
    incidents: Sequence[IncidentLike],
    actions: Sequence[ActionLike],
    states: Sequence[StateLike],
    now: float,
    want: int = 0,
) -> list[Span]:
    """Return everything known of one job, as overlapping spans with priorities."""
    causes = {incident.id: str(incident.incident_class) for incident in incidents}
    steps = work(epochs, stretches, causes, shares(epochs, actions, causes, want))
    ended = {row.epoch: row.opened_at if row.last_step_at is None else row.last_step_at for row in epochs}
    found = [*steps, *waits(states, now), *zeros(states, now), *_between(epochs, steps, causes, now)]
    by_incident: dict[str, list[ActionLike]] = {}
    for action in actions:
        by_incident.setdefault(action.incident_id, []).append(action)
    opened = sorted(row.opened_at for row in epochs)
    stopped = (row for row in incidents if _stops(row, by_incident.get(row.id, ())))
    for order, incident in enumerate(sorted(stopped, key=lambda row: row.detected_at)):
        since = min(incident.detected_at, ended.get(incident.epoch, incident.detected_at))
        # After the playbooks gave up, the next start is a person's.
        until = now
        if incident.state is IncidentState.NEEDS_HUMAN and incident.closed_at is not None:
            until = next((at for at in opened if at > incident.closed_at), now)
        found += incident_phases(incident, by_incident.get(incident.id, ()), since, until, order)
    return found


def _stops(incident: IncidentLike, actions: Iterable[ActionLike]) -> bool:
    """Return whether time without steps is the incident's: of a planned move, once it began to switch."""
    if incident.incident_class == IncidentClass.PLANNED_MOVE:
        return any(action.kind == "hold" for action in actions)
    return incident.incident_class not in BESIDE_TRAINING


class _Part:
    """Steps ``first`` to ``last``, made evenly from ``begin`` to ``end``."""

    def __init__(self, first: int, last: int, begin: float, end: float, stall_s: float = 0.0) -> None:
        self.first, self.last, self.begin, self.end, self.stall_s = first, last, begin, end, stall_s

    def spans(self, reached: int, cause: str, size: Share) -> Iterator[Span]:
        """Split the part into spans; steps up to ``reached`` had been made before."""
        count = self.last - self.first + 1
        again = min(count, max(0, reached - self.first + 1))
        turn = self.end if again == count else self.begin + (self.end - self.begin) * again / max(1, count)
        if again:
            yield Span(self.begin, turn, LostPhase.RECOMPUTING, cause, (_STEPS, 0.0))
        if again < count:
            stall = self.stall_s * (count - again) / count
            yield Span(turn, self.end, None, size.cause, (_STEPS, 1.0), stall, size.share)


def _whole(row: EpochLike, typical: float) -> list[_Part]:
    """Return the part of an epoch of which only the first and last step are known."""
    if row.first_step is None or row.last_step is None:
        return []
    first_at = row.first_step_at if row.first_step_at is not None else row.opened_at
    last_at = max(first_at, row.last_step_at if row.last_step_at is not None else first_at)
    steps = row.last_step - row.first_step
    # The first step has an end but no beginning: it takes as long as the others, within the epoch's life.
    begun = max(row.opened_at, first_at - ((last_at - first_at) / steps if steps > 0 else typical))
    return [_Part(row.first_step, row.last_step, begun, last_at)]


def _typical_step(epochs: Iterable[EpochLike]) -> float:
    """Return the mean duration of a step over all epochs, in seconds; 0 when no epoch has two steps."""
    time = steps = 0.0
    for row in epochs:
        if row.first_step_at is not None and row.last_step_at is not None:
            time += row.last_step_at - row.first_step_at
            steps += (row.last_step or 0) - (row.first_step or 0)
    return time / steps if steps else 0.0


def _between(
    epochs: Sequence[EpochLike], steps: Sequence[Span], causes: Mapping[str, str], now: float
) -> list[Span]:
    """Return spans known from epochs alone: each starts before its first step, and stands still after its last."""
    begins = sorted(span.begin for span in steps)
    found = []
    for row, following in zip(epochs, [*epochs[1:], None], strict=True):
        end = following.opened_at if following else now
        first = next((at for at in begins if row.opened_at <= at <= end), end)
        cause = causes.get(row.incident_id or "", "")
        found.append(Span(row.opened_at, first, LostPhase.RESTARTING, cause, (_EPOCH,)))
        if row.last_step_at is not None:
            found.append(Span(row.last_step_at, end, LostPhase.UNDETECTED, "", (_EPOCH,)))
    return found
