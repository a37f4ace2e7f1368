"""Signals that were taken already, so that the same one never acts twice. Bounded: the oldest are forgotten."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeVar

from holdfast.models.alert import Alert, AlertKind, Incident
from holdfast.models.machine import Machine, MachineState
from holdfast.policies.classify.importance import Importance

Key = TypeVar("Key")
Value = TypeVar("Value")

REMEMBERED = 8192
FOR_S = 300.0
"""A signal counts as repeated so long after its incident closed."""
MAY_JOIN = {Importance.ECHO: 96, Importance.EVIDENCE: 64, Importance.SIGN: 96}
"""Alerts that join one incident. With those that opened it they are no more than the ledger keeps of an epoch."""
PER_INCIDENT = sum(MAY_JOIN.values())


def repeated_s(alert: Alert, machines: Iterable[Machine]) -> float:
    """Return how long after its incident closed the same signal counts as repeated.

    A machine's agent reports a notice again while it stands: where no move came of it and one can be tried, it is taken
    as a new one at once. The machine's time is short, and the standby that was missing may be there.
    """
    if alert.kind is not AlertKind.PLANNED_MOVE:
        return FOR_S  # and no look at a thousand machines for each alert of a storm
    spare = any(each.state is MachineState.STANDBY and each.name != alert.machine for each in machines)
    return 0.0 if spare else FOR_S


class Deduplicator:
    """Which incident took which signal."""

    def __init__(self) -> None:
        self._taken: OrderedDict[str, str] = OrderedDict()
        self._joined: OrderedDict[tuple[str, Importance], int] = OrderedDict()
        self._closed: OrderedDict[str, float] = OrderedDict()
        self._ignored: OrderedDict[str, float] = OrderedDict()

    def load(self, incidents: Iterable[Incident], now: float) -> None:
        """Take up what an earlier gateway knew."""
        for incident in incidents:
            if incident.closed_at is not None:
                if now - incident.closed_at > FOR_S:
                    continue
                self.closed(incident.id, incident.closed_at)
            for alert in incident.alerts:
                self.take(alert.key, incident.id)

    def take(self, key: str, incident_id: str) -> None:
        """Remember a signal."""
        _put(self._taken, key, incident_id)

    def closed(self, incident_id: str, at: float) -> None:
        """Note that the incident is closed; its signals are remembered a while longer."""
        _put(self._closed, incident_id, at)

    def ignored_lately(self, key: str, now: float) -> bool:
        """Return the same signal was ignored a while ago: the ledger need not hear of it each time. Notes this time."""
        at = self._ignored.get(key)
        if at is not None and now - at <= FOR_S:
            return True
        _put(self._ignored, key, now)
        return False

    def owner(self, alert: Alert, now: float, for_s: float = FOR_S) -> str | None:
        """Return the incident that has this signal already and is open, or was closed less than ``for_s`` ago.

        What a person asks after the incident was closed is another request.
        """
        incident_id = self._taken.get(alert.key)
        if incident_id is None:
            return None
        closed_at = self._closed.get(incident_id)
        if closed_at is None:
            return incident_id
        asked_again = alert.kind is AlertKind.MANUAL and not alert.fingerprint and alert.at > closed_at
        return incident_id if now - closed_at < for_s and not asked_again else None

    def may_join(self, incident_id: str, weight: Importance) -> bool:
        """Count one more alert for the incident; False when it has enough of this importance."""
        count = self._joined.get((incident_id, weight), 0) + 1
        _put(self._joined, (incident_id, weight), count)
        return count <= MAY_JOIN[weight]

    def __len__(self) -> int:
        """Return the number of signals remembered."""
        return len(self._taken)


def _put(table: OrderedDict[Key, Value], key: Key, value: Value) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > REMEMBERED:
        table.popitem(last=False)
