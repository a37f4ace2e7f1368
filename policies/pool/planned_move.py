"""Planned moves: what is asked for, which standby takes over, whether there is time, what becomes of the machine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from holdfast.models.alert import MACHINE_KINDS, Alert, AlertKind, Incident, MoveSource
from holdfast.models.base import Frozen
from holdfast.policies.config.planned_move import PlannedMovePolicy


class MoveRequest(Frozen):
    """A request to leave a machine."""

    machine: str
    source: MoveSource = MoveSource.BY_HAND
    text: str = ""
    to: str = ""
    """The standby that is wanted; empty: any."""
    deadline_at: float | None = None
    """When the machine will be gone (Unix seconds); None: not known."""

    @property
    def description(self) -> str:
        """In words."""
        why = self.source.value.replace("_", " ")
        return f"{why}: {self.text}" if self.text else why

    @property
    def left_because(self) -> str:
        """Why the machine that was left is out of service until it is handed back, in words."""
        return f"left: {self.description}"


def of(alert: Alert) -> MoveRequest:
    """Return the request of one alert: it asks for a move, is of a person, or is a sign that the machine will fail."""
    found, kind = alert.evidence, alert.kind
    if kind in MACHINE_KINDS:
        text = str(found.get("detail") or kind.value.replace("_", " "))
        return MoveRequest(machine=alert.machine or "", source=MoveSource.PRECURSOR, text=text)
    deadline = found.get("deadline_at") if kind is AlertKind.PLANNED_MOVE else None
    return MoveRequest(
        machine=alert.machine or "",
        source=MoveSource(found.get("source") or MoveSource.BY_HAND),
        text=str(found.get("text") or ""),
        to=str(found.get("to") or ""),
        deadline_at=float(deadline) if deadline else None,
    )


def reason(alert: Alert) -> str:
    """Return the reason of an incident that was opened for the request of one alert."""
    return f"asked to leave {alert.machine}, {of(alert).description}"


def asked(incident: Incident) -> MoveRequest | None:
    """Return the request that an incident was opened for; None: it names no machine.

    Of several alerts the newest request counts, and the earliest deadline; without one, a sign or a person's alert.
    """
    if incident.machine is None:
        return None
    mine = [each for each in incident.alerts if each.machine == incident.machine]
    moves = [each for each in mine if each.kind is AlertKind.PLANNED_MOVE] or mine[:1]
    if not moves:
        return MoveRequest(machine=incident.machine)
    requests = [of(each) for each in moves]
    deadlines = [each.deadline_at for each in requests if each.deadline_at is not None]
    return requests[-1].model_copy(update={"deadline_at": min(deadlines, default=None)})


def withdrawn(incident: Incident, recorded: Iterable[Alert]) -> bool:
    """Return whether each request of an incident to leave its machine was withdrawn since by its own source.

    Args:
        incident: it asks for a move.
        recorded: all that was reported of it, also what is over.
    """
    over: dict[MoveSource, float] = {}
    for each in recorded:
        if each.kind is AlertKind.PLANNED_MOVE and each.machine == incident.machine and not each.firing:
            source = of(each).source
            over[source] = max(each.at, over.get(source, each.at))
    mine = [each for each in incident.alerts if each.machine == incident.machine]
    return bool(mine) and all(over.get(of(each).source, float("-inf")) >= each.at for each in mine)


class Targets(Frozen):
    """Standbys to try, best first; none: why."""

    names: tuple[str, ...] = ()
    why: str = ""


def targets(
    request: MoveRequest,
    standbys: Sequence[str],
    excluded: Collection[str],
    most: int,
) -> Targets:
    """Choose the standbys that may take over.

    Args:
        request: what is asked for.
        standbys: names of machines that stand by, best first.
        excluded: those that cannot take this place: of another group, or that come and go.
        most: how many are tried.
    """
    usable = [name for name in standbys if name not in excluded and name != request.machine]
    if request.to:
        if request.to in usable:
            return Targets(names=(request.to,))
        return Targets(why=f"{request.to} does not stand by, or cannot take the place of {request.machine}")
    if not usable:
        return Targets(why=f"no standby can take the place of {request.machine}")
    return Targets(names=tuple(usable[:most]))


def hurried(request: MoveRequest, now: float, policy: PlannedMovePolicy) -> bool:
    """Return whether there is time only for the short checks."""
    return request.deadline_at is not None and request.deadline_at - now < policy.hurried_s


def too_late(request: MoveRequest, now: float, policy: PlannedMovePolicy) -> str:
    """Return why the switch is not begun any more; empty: there is time."""
    if request.deadline_at is None:
        return ""
    left_s = request.deadline_at - now
    if left_s >= policy.margin_s:
        return ""
    return (
        f"{request.machine} goes in {max(0.0, left_s):.0f} s, less than the margin of {policy.margin_s:.0f} s: when it "
        "is gone, the job recovers as from a lost machine"
    )
