"""Small judgements on single alerts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.models.alert import HUMAN_KINDS, MACHINE_KINDS, Alert, Incident
from holdfast.models.job import Job
from holdfast.models.machine import Machine, MachineState
from holdfast.policies.escalate import by_hand


def before(alert: Alert, incident: Incident) -> bool:
    """Return whether the alert is of an epoch that ended before the one of the incident."""
    return alert.epoch is not None and alert.epoch < incident.epoch


def injected_at(alerts: Iterable[Alert]) -> float | None:
    """Return when a fault was injected, where the injector could leave a mark."""
    times = [
        a.evidence["injected_at"] for a in alerts if isinstance(a.evidence.get("injected_at"), int | float)
    ]
    return min(times) if times else None


def still_true(alert: Alert, incident: Incident, job: Job, machines: Mapping[str, Machine]) -> bool:
    """Return whether an alert that joined the incident still holds: its repair did not remove the alert's cause."""
    wanted_out = by_hand.asks_for([alert], [alert.machine or ""])
    if alert.kind in MACHINE_KINDS or wanted_out:
        machine = machines.get(alert.machine or "")
        return (
            machine is not None
            and (wanted_out or machine.name != incident.machine)
            and machine.name in job.machines
            and machine.state is MachineState.ACTIVE
            and alert.incarnation == machine.incarnation
        )
    of_now = alert.epoch == job.epoch and job.epoch > incident.epoch
    return of_now and alert.kind not in HUMAN_KINDS
