"""Machines whose ranks hold other weights than their replicas: a fault of the machine, or of the program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.models.alert import Alert, AlertKind
from holdfast.models.base import Frozen


class Odd(Frozen):
    """Machines whose state differs from the majority."""

    machines: tuple[str, ...] = ()
    """Machines at fault."""
    reasons: tuple[str, ...] = ()
    """Reasons for and against."""


def odd(alerts: Iterable[Alert], earlier: Iterable[Alert], present: Mapping[str, str]) -> Odd:
    """Return the machines that the comparisons of replicas accuse.

    A rank that was odd before, on another machine, is odd by its program: its program differs from the others'. So is
    whichever rank is odd at the very step at which one on another machine was: bits that flip choose no step.

    Args:
        alerts: of the incident.
        earlier: of earlier incidents of the same code.
        present: the job's machines with their incarnations.
    """
    past = list(earlier)
    before = {rank: alert.machine for alert in past for rank in _ranks(alert)}
    at_step: dict[int | None, Alert] = {
        step: alert for alert in past if _ranks(alert) and (step := _step(alert)) is not None
    }
    machines: list[str] = []
    reasons: list[str] = []
    for alert in alerts:
        machine = alert.machine
        if not _ranks(alert) or machine is None or alert.incarnation not in (None, present.get(machine)):
            continue
        if moved := [rank for rank in _ranks(alert) if before.get(rank, machine) != machine]:
            where = ", ".join(f"rank {rank} on {before[rank]}" for rank in moved)
            reasons.append(
                f"{machine}: not accused, for its replica was odd on another machine before ({where})"
            )
        elif (first := at_step.get(_step(alert))) is not None and first.machine != machine:
            reasons.append(
                f"{machine}: not accused, for a replica on {first.machine} was odd at step {_step(alert)} as well: it "
                "comes from the program"
            )
        elif machine in present:
            machines.append(machine)
            reasons.append(
                f"{machine}: {alert.evidence.get('detail', 'its replica differs from the others')}"
            )
    return Odd(machines=tuple(dict.fromkeys(machines)), reasons=tuple(dict.fromkeys(reasons)))


def _step(alert: Alert) -> int | None:
    step = alert.evidence.get("step")
    return step if isinstance(step, int) else None


def _ranks(alert: Alert) -> list[int]:
    """Return the odd ranks on the machine that the alert names."""
    if alert.kind is not AlertKind.REPLICA_DIFFERS or alert.machine is None:
        return []
    return [rank for rank in alert.evidence.get("ranks", ()) if isinstance(rank, int)]
