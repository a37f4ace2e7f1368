"""Machines that are dead for sure, so that their eviction is none on suspicion; and those only silent. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from holdfast.models.alert import Alert, AlertKind
from holdfast.policies.restore.replace_first import seen_lost


def surely(
    alerts: Iterable[Alert], lives: Mapping[str, str], unreached: Collection[str], silent: Collection[str]
) -> tuple[str, ...]:
    """Return the machines that two observers found dead: the gateway in their present life, and who stopped the job.

    A machine that only does not answer may run on, where the network to it is cut: it is none of them.

    Args:
        alerts: of the incident.
        lives: the incarnation of each of the job's machines.
        unreached: machines that the order to stop did not reach.
        silent: of these, those that refused no connection.
    """
    listed = list(alerts)
    refused = [name for name in unreached if name not in silent]
    return tuple(name for name in refused if name in lives and seen_lost(listed, name, lives[name]))


def only_silent(alerts: Iterable[Alert], lives: Mapping[str, str]) -> set[str]:
    """Return the machines that were reported as lost, in their present life, for nothing but their silence.

    Args:
        alerts: those for which the incident was opened; what a monitor or a person reports shows no silence.
        lives: the incarnation of each of the job's machines.
    """
    lost = [
        alert
        for alert in alerts
        if alert.kind is AlertKind.MACHINE_LOST
        and alert.incarnation in (None, lives.get(alert.machine or ""))
    ]
    refused = {alert.machine for alert in lost if alert.evidence.get("silent") is not True}
    return {name for alert in lost if (name := alert.machine or "") in lives and name not in refused}


def go_uncounted(dead: int, before: int, job_size: int, standbys: int) -> bool:
    """Return whether dead machines of a job may be evicted without being counted by the breaker.

    Where standbys can take all their places: to leave them costs the job, and each place is refilled at most once.

    Args:
        dead: machines of the job that are dead for sure.
        before: of its evictions within the breaker's window, those that were not counted.
        job_size: its machines.
        standbys: standbys that can take a place of these now.
    """
    return 0 < dead <= min(standbys, job_size - before)
