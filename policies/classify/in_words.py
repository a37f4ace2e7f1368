"""The one line about an incident: its reason, the message of the exception, and the failure that came after it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.models.alert import Alert, AlertKind, Incident, IncidentClass
from holdfast.policies.classify.roots import separate

_LONGEST = 160
_NAMED = 3


def cause(incident: Incident) -> str:
    """Return the first reason of the incident with the message of its exception."""
    if not incident.reasons:
        return ""
    first = incident.reasons[0]
    own = [
        each for each in _exits(incident.alerts) if each.rank == incident.rank and not _later(each, incident)
    ]
    message = next((summary for each in own if (summary := _message(each))), "")
    summary = f"{first} ({message})" if message and message[:40] not in first else first
    if incident.incident_class is IncidentClass.JOB_HANG and (seen := _seen_late(incident)):
        return f"{summary}; then {seen}"
    if late := _killed_late(incident):
        first = f"rank {late.rank} on {late.machine} {_how(late)}{_killed_too(incident, late.rank)}"
        return f"{first}; reported before: {summary}"
    return f"{summary}{_killed_too(incident, incident.rank)}"


def _killed_too(incident: Incident, first: int | None) -> str:
    """Return which other ranks signals ended at the same time, where one ended ``first``; empty: none."""
    ended = separate(each for each in incident.alerts if not _later(each, incident))
    killed = [each for each in (*ended.roots, *ended.waited) if each.evidence.get("signal")]
    led = next((each for each in killed if each.rank == first), None)
    if led is None:
        return ""
    by_signal: dict[str, list[str]] = {str(led.evidence["signal"]): []}
    for each in {each.rank: each for each in reversed(killed)}.values():
        if each.rank != first:
            whom = by_signal.setdefault(str(each.evidence["signal"]), [])
            whom.insert(0, f"rank {each.rank} on {each.machine}")
    same, *others = by_signal.items()
    alike = f", as {'were' if len(same[1]) > 1 else 'was'} {_listed(same[1])}" if same[1] else ""
    return alike + "".join(f", and {_listed(whom)} by {signal}" for signal, whom in others)


def _listed(whom: Sequence[str]) -> str:
    if len(whom) > _NAMED:
        return f"{', '.join(whom[:_NAMED])} and {len(whom) - _NAMED} more"
    return " and ".join([", ".join(whom[:-1]), whom[-1]] if len(whom) > 1 else whom)


def _seen_late(incident: Incident) -> str:
    """Return the exception that came while the hang was looked into: what the job fell over; empty: none did."""
    roots = separate(each for each in incident.alerts if not _later(each, incident)).roots
    return next((_ended(each) for each in _exits(roots) if each.evidence.get("error_type")), "")


def _killed_late(incident: Incident) -> Alert | None:
    """Return the rank that a signal ended, where what opened the incident was another's exception; None: none was.

    An exception that follows a peer's death is not always distinguished from one with a cause of its own.
    """
    roots = separate(each for each in incident.alerts if not _later(each, incident)).roots
    first = next((each for each in roots if each.rank == incident.rank), None)
    if (
        incident.rank is None
        or first is None
        or first.evidence.get("signal")
        or not roots[0].evidence.get("signal")
    ):
        return None
    return roots[0]


def since(incident: Incident) -> str:
    """Return how the newest epoch that was started for the incident failed, if in another way; empty: it did not.

    An incident goes on through several attempts: a rank that is killed, or a port that is taken meanwhile, is what
    stops the job now.
    """
    roots = separate(incident.alerts).roots
    later = [each for each in _exits(roots) if _later(each, incident)]
    if not later:
        return ""
    newest = max(each.epoch or 0 for each in later)
    last = next(each for each in later if each.epoch == newest)
    if any(_kind(each) == _kind(last) for each in _exits(roots) if not _later(each, incident)):
        return ""
    return f"{_ended(last)} in epoch {newest}"


def _ended(exit_: Alert) -> str:
    message = _message(exit_)
    return f"rank {exit_.rank} on {exit_.machine} {_how(exit_)}{f' ({message})' if message else ''}"


def _exits(alerts: Sequence[Alert]) -> list[Alert]:
    return [
        alert for alert in alerts if alert.kind is AlertKind.RANK_EXIT and not alert.evidence.get("cascade")
    ]


def _later(alert: Alert, incident: Incident) -> bool:
    return alert.epoch is not None and alert.epoch > incident.epoch


def _kind(alert: Alert) -> tuple[str, ...]:
    return tuple(str(alert.evidence.get(name) or "") for name in ("signal", "error_type", "user_frame"))


def _how(alert: Alert) -> str:
    evidence = alert.evidence
    if signal := evidence.get("signal"):
        return f"was killed by {signal}"
    return f"ended with {evidence.get('error_type') or 'status ' + str(evidence.get('exit_code'))}"


def _message(alert: Alert) -> str:
    """Return the first line of an exception's message, cut to a readable length."""
    if alert.evidence.get("signal") or not alert.evidence.get("error_type"):
        return ""
    line = str(alert.evidence.get("message") or "").strip().partition("\n")[0]
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
