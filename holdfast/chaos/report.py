"""Report of a run of chaos: its faults and their outcomes. Pure: from the strikes and the ledger's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.chaos.fault_plan import Strike
from holdfast.chaos.strike import Hit
from holdfast.demo.report import evicted
from holdfast.demo.weights import WeightsComparison
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.base import Frozen
from holdfast.models.history import Action
from holdfast.models.job import JobState
from holdfast.policies.accounting.ettr import Ettr


class JobSeen(Frozen):
    """The job at one moment, as its agents and the ledger report."""

    at: float
    step: int
    well: bool = True
    """Every service of the site answers, and every replica of the job's roles is there."""


class StrikeLine(Frozen):
    """One strike of the plan."""

    at_s: float
    faults: tuple[str, ...]
    hits: tuple[Hit, ...]
    incidents: tuple[str, ...] = ()
    recovered: bool = False
    """The incidents that it led to are over, the job made new steps, and the services answer."""
    recovered_s: float | None = None
    """Seconds from the strike to the recovery."""

    @property
    def fired(self) -> bool:
        """Whether any of its faults fired."""
        return any(hit.fired for hit in self.hits)


class Eviction(Frozen):
    """A machine that a playbook took out of service."""

    machine: str
    incident: str
    faulted: bool
    """A fault that the incident is about had hit it."""


class ChaosReport(Frozen):
    """All of a run."""

    job: str
    seed: int
    ok: bool
    problems: tuple[str, ...]
    lines: tuple[StrikeLine, ...]
    evictions: tuple[Eviction, ...]
    state: str
    """State of the job at the end."""
    ettr: float
    steps_total: int
    steps_recomputed: int
    """Lost to faults and done again."""
    worst_gap_s: float
    wall_s: float
    weights: WeightsComparison | None = None
    """Comparison with a run without faults; None: not requested, or not available."""


def lines(
    strikes: Sequence[tuple[Strike, tuple[Hit, ...]]], incidents: Sequence[Incident], seen: Sequence[JobSeen]
) -> tuple[StrikeLine, ...]:
    """Match each strike with the incidents that were open when it came or opened before the next one."""
    begins = [min(hit.at for hit in hits) for _, hits in strikes]
    found = []
    for number, (strike, hits) in enumerate(strikes):
        begin = begins[number]
        end = begins[number + 1] if number + 1 < len(begins) else float("inf")
        mine = [row for row in incidents if row.opened_at < end and (_closed_at(row) or end) >= begin]
        found.append(_line(strike, hits, begin, mine, seen))
    return tuple(found)


def _line(
    strike: Strike, hits: tuple[Hit, ...], begin: float, mine: Sequence[Incident], seen: Sequence[JobSeen]
) -> StrikeLine:
    line = StrikeLine(
        at_s=strike.at_s, faults=strike.faults, hits=hits, incidents=tuple(row.id for row in mine)
    )
    if not line.fired:
        return line
    recovered = [row.recovered_at for row in mine if row.recovered_at is not None]
    undone = begin + (strike.hold_s if any("stop" in f or "lock" in f for f in strike.faults) else 0.0)
    since = max([begin, *recovered])
    on = _goes_on(seen, begin, since if recovered else undone)
    if on is None or not all(_is_over(row) for row in mine):
        return line
    return line.model_copy(update={"recovered": True, "recovered_s": round(max(since, on) - begin, 3)})


def _goes_on(seen: Sequence[JobSeen], begin: float, since: float) -> float | None:
    """Return when the job first did steps beyond those done at ``begin``, with all services well, after ``since``."""
    before = max((row.step for row in seen if row.at <= begin), default=0)
    later = (row.at for row in seen if row.at >= since and row.step > before + 1 and row.well)
    return next(later, None)


def evictions(
    found: Sequence[StrikeLine], incidents: Sequence[Incident], actions: Mapping[str, Sequence[Action]]
) -> tuple[Eviction, ...]:
    """Return every evicted machine, and whether a fault of that very incident had hit it."""
    return tuple(
        Eviction(
            machine=machine,
            incident=row.id,
            faulted=any(
                hit.fired and hit.machine == machine
                for line in found
                if row.id in line.incidents
                for hit in line.hits
            ),
        )
        for row in incidents
        for machine in evicted(actions.get(row.id, ()))
    )


def problems(
    found: Sequence[StrikeLine],
    gone: Sequence[Eviction],
    state: str,
    weights: WeightsComparison | None,
    *,
    compared: bool,
    why_differ: str = "",
) -> tuple[str, ...]:
    """Describe the failures of the run in words."""
    lines = [
        f"{'+'.join(line.faults)} at {line.at_s:.0f} s was not recovered"
        for line in found
        if line.fired and not line.recovered
    ]
    lines += [
        f"{each.machine} was evicted by {each.incident}, and no fault hit it"
        for each in gone
        if not each.faulted
    ]
    if not any(line.fired for line in found):
        lines.append("no fault fired: nothing was shown")
    if state not in (JobState.RUNNING, JobState.DONE):
        lines.append(f"the job is {state}")
    if compared and (weights is None or not weights.equal):
        why = f": {why_differ}" if why_differ else ""
        lines.append(f"the final weights are not shown to be those of a run without faults{why}")
    return tuple(lines)


def report(
    job: str,
    seed: int,
    *,
    strikes: Sequence[tuple[Strike, tuple[Hit, ...]]],
    incidents: Sequence[Incident],
    actions: Mapping[str, Sequence[Action]],
    seen: Sequence[JobSeen],
    state: str,
    measured: Ettr,
    weights: WeightsComparison | None = None,
    compared: bool = False,
    why_differ: str = "",
) -> ChaosReport:
    """Build the report; ``why_differ``: why the weights may differ without a fault of the recovery."""
    found = lines(strikes, incidents, seen)
    gone = evictions(found, incidents, actions)
    wrong = problems(found, gone, state, weights, compared=compared, why_differ=why_differ)
    return ChaosReport(
        job=job,
        seed=seed,
        ok=not wrong,
        problems=wrong,
        lines=found,
        evictions=gone,
        state=state,
        ettr=round(measured.ettr, 4),
        steps_total=measured.steps_total,
        steps_recomputed=measured.steps_recomputed,
        worst_gap_s=round(measured.worst_gap_s, 3),
        wall_s=round(measured.wall_s, 3),
        weights=weights,
    )


def _is_over(row: Incident) -> bool:
    """Return whether it was recovered, or dismissed because nothing was left to do."""
    recovered = row.state is IncidentState.RECOVERED and row.recovered_at is not None
    return recovered or row.state is IncidentState.DISMISSED


def _closed_at(row: Incident) -> float | None:
    return row.recovered_at or row.closed_at
