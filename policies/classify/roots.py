"""The rank that failed first, and why. The others only lost their peer.

Independent of the order in which the reports arrived.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.models.alert import Alert, AlertKind
from holdfast.models.base import Frozen

OWN_CAUSES = frozenset(
    {"gpu", "gpu_memory", "host_memory", "data_loader", "disk_space", "filesystem", "code", "crash", "setup"}
)
"""Causes (of the registry of log patterns) that lie with the rank itself, whatever became of its peers."""


WAITED = "waited"
"""Evidence of a rank that ended when its epoch was over already, in a process that was kept: it is no cause of that."""

NEAR_S = 2400.0
"""Wait for a rank that failed without ending, until the watchdog's time-out: 10 minutes, 30 in older versions."""


class SeparatedExits(Frozen):
    """Exits of ranks, separated into roots and cascading failures."""

    roots: tuple[Alert, ...] = ()
    """Exits with a cause of their own, the likeliest first."""
    cascades: tuple[Alert, ...] = ()
    """Exits of ranks that lost a peer, earliest first."""
    waited: tuple[Alert, ...] = ()
    """Exits of ranks whose epoch was over already, earliest first."""


def separate(alerts: Iterable[Alert]) -> SeparatedExits:
    """Separate roots from cascading failures.

    An exit is a cascading failure when its last log lines report only a lost peer. When all do, a rank whose log had a
    cause not long before (an illegal memory access, and then the peers were gone) is a root after all.

    Among roots, one killed by a signal outweighs an exception (user code that fails because a peer died is a cascading
    failure that was not recognised as one); then the earliest counts, by the rank's own time where it reported one.
    """
    listed = list(alerts)
    ended = [alert for alert in listed if alert.kind is AlertKind.RANK_EXIT]
    waited = [alert for alert in ended if alert.evidence.get(WAITED)]
    exits = [alert for alert in ended if not alert.evidence.get(WAITED)]
    roots = [alert for alert in exits if not alert.evidence.get("cascade")]
    if not roots:
        causes = [alert for alert in listed if _names_a_cause(alert)]
        roots = [alert for alert in exits if any(_before(line, alert) for line in causes)]
    chosen = {alert.key for alert in roots}
    cascades = [alert for alert in exits if alert.key not in chosen]
    return SeparatedExits(
        roots=tuple(sorted(roots, key=_likeliest)),
        cascades=tuple(sorted(cascades, key=_earliest)),
        waited=tuple(sorted(waited, key=_earliest)),
    )


def failed_at(alert: Alert) -> float:
    """Return when the rank failed: its own report, else when its agent saw it end (Unix seconds)."""
    reported = alert.evidence.get("failed_at")
    return float(reported) if isinstance(reported, int | float) else alert.at


def _likeliest(alert: Alert) -> tuple[bool, float, int, str]:
    return (not alert.evidence.get("signal"), *_earliest(alert))


def _earliest(alert: Alert) -> tuple[float, int, str]:
    return failed_at(alert), alert.rank if alert.rank is not None else -1, alert.key


def _rank(alert: Alert) -> tuple[int | None, int | None]:
    return alert.rank, alert.epoch


def _before(line: Alert, exit_: Alert) -> bool:
    """Return whether a line is near enough to the end to have led to it; a rank survived what is older."""
    return _rank(line) == _rank(exit_) and exit_.at - line.at <= NEAR_S


def _names_a_cause(alert: Alert) -> bool:
    return alert.kind is AlertKind.RANK_LOG and alert.evidence.get("cause") in OWN_CAUSES
