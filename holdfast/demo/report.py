"""The demo's report: facts from the ledger, put together into one document. Pure: no clock, no disk."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from holdfast.demo.observer import Sample
from holdfast.demo.story import AnsweredFault
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.base import Frozen
from holdfast.models.history import Action, ActionState, machine_of
from holdfast.models.job import JobState
from holdfast.policies.accounting.lost_time import account
from holdfast.policies.accounting.timeline import incident_phases


class ActionLine(Frozen):
    """One action of a playbook; times in seconds."""

    key: str
    kind: str
    state: str
    at_s: float
    """Since the incident's detection."""
    seconds: float | None


class IncidentLine(Frozen):
    """One incident: times in seconds, from the injection where there was one (else from the detection)."""

    id: str
    incident_class: str = Field(serialization_alias="class")
    fault: str = ""
    """Name of the injected fault; empty for a planned change."""
    machine: str | None
    """The machine that the playbook evicted, else the one that its alerts name; never taken from the injection."""
    state: str
    injected_at: float | None
    detected_at: float
    detected_s: float
    first_task_s: float | None
    """Time from the accepted alert to the playbook's first task."""
    recovered_s: float | None
    """Injection to the first new step."""
    actions: tuple[ActionLine, ...]
    phases: dict[str, float]
    """Phase -> seconds, in order; sums up to ``recovered_s``."""
    attempt: int
    summary: str
    flow_run_id: str | None


class DemoReport(Frozen):
    """``report.json``. Durations in seconds, times in Unix seconds."""

    ok: bool
    bitwise_equal: bool
    ettr: float
    steps_total: int
    steps_recomputed: int
    wall_s: float
    lost_by_phase_s: dict[str, float] = Field(default_factory=dict)
    """Phase -> seconds, for the rest of the wall-clock time."""
    lost_by_class_s: dict[str, float] = Field(default_factory=dict)
    started_at: float
    job: str
    reference_job: str
    problems: tuple[str, ...]
    incidents: tuple[IncidentLine, ...]
    timeline: tuple[tuple[float, int], ...]
    """(seconds since the start, last step) of the job, as it was seen."""
    prefect_url: str


def incident_line(
    incident: Incident, actions: Sequence[Action], injected: AnsweredFault | None
) -> IncidentLine:
    """Return one incident with its actions; ``injected`` is the fault that it answers."""
    since = injected.at if injected else incident.detected_at
    return IncidentLine(
        id=incident.id,
        incident_class=incident.incident_class.value,
        fault=injected.fault.name if injected else "",
        machine=", ".join(evicted(actions)) or incident.machine,
        state=incident.state.value,
        injected_at=injected.at if injected else None,
        detected_at=incident.detected_at,
        detected_s=_round(incident.detected_at - since),
        first_task_s=_since(incident.first_task_at, incident.detected_at),
        recovered_s=_since(incident.recovered_at, since),
        actions=tuple(
            ActionLine(
                key=action.key,
                kind=action.kind,
                state=action.state.value,
                at_s=_round(action.begun_at - incident.detected_at),
                seconds=_since(action.done_at, action.begun_at),
            )
            for action in actions
        ),
        phases=phases(incident, actions, since),
        attempt=incident.attempt,
        summary=incident.summary,
        flow_run_id=incident.flow_run_id,
    )


def phases(incident: Incident, actions: Sequence[Action], since: float) -> dict[str, float]:
    """Split an incident's time by phase, from ``since`` to the first new step; seconds without gaps or overlaps."""
    end = incident.recovered_at or incident.closed_at
    if end is None:
        return {}
    found = account(incident_phases(incident, actions, since, end), since, end)
    return {name: _round(length) for name, length in found.by_phase().items()}


def evicted(actions: Sequence[Action]) -> list[str]:
    """Return the machines that a playbook took out of service."""
    return [machine_of(row.key) for row in actions if row.kind == "evict" and row.state is ActionState.DONE]


def problems(
    injected: Sequence[AnsweredFault],
    expected: int,
    lines: Sequence[IncidentLine],
    state: str,
    bitwise_equal: bool,
) -> tuple[str, ...]:
    """Describe everything that keeps the demo from being a success, in words."""
    incidents = {line.id: line for line in lines}
    found = []
    if len(injected) < expected:
        found.append(f"only {len(injected)} of {expected} faults were injected")
    for row in injected:
        line = incidents.get(row.incident_id or "")
        if line is None or line.recovered_s is None:
            found.append(f"{row.fault.name} on {row.machine} was not recovered by {row.fault.expected.value}")
        elif row.fault.costs_machine and row.machine not in (line.machine or "").split(", "):
            found.append(f"{row.fault.name} hit {row.machine}, and the playbook evicted {line.machine}")
    for line in lines:
        if line.state in (IncidentState.OPEN, IncidentState.NEEDS_HUMAN):
            found.append(f"incident {line.id} ({line.incident_class}) is {line.state}")
    if state != JobState.DONE:
        found.append(f"the job did not finish: it is {state or 'unknown'}")
    elif not bitwise_equal:
        found.append("the final weights differ from those of the run without faults")
    return tuple(found)


def timeline(samples: Sequence[Sample], start: float) -> tuple[tuple[float, int], ...]:
    """Return the samples as (seconds since ``start``, step)."""
    return tuple((_round(sample.at - start), sample.step) for sample in samples)


def _since(at: float | None, start: float) -> float | None:
    return None if at is None else _round(at - start)


def _round(seconds: float) -> float:
    return round(seconds, 3)
