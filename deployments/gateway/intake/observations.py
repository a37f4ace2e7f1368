"""Signals that were no incident by themselves, kept for a while: with the next one they may be."""

from __future__ import annotations

from collections import deque

from holdfast.models.alert import MACHINE_KINDS, Alert, AlertKind

PER_JOB = 64
OF_AN_EPOCH = frozenset({AlertKind.RANK_LOG})
"""Kinds whose report is over with the epoch; a machine's faults outlive it."""


class Observations:
    """The newest such signals of each job."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._seen: dict[str, deque[tuple[Alert, float]]] = {}

    def add(self, job: str, alerts: list[Alert], now: float) -> None:
        """Keep those that are observations, heard ``now`` on our clock: a machine's may be minutes off."""
        kept = [(alert, now) for alert in alerts if alert.kind in MACHINE_KINDS or alert.kind in OF_AN_EPOCH]
        if kept:
            self._seen.setdefault(job, deque(maxlen=PER_JOB)).extend(kept)

    def of(self, job: str, epoch: int, now: float) -> list[Alert]:
        """Return the job's signals within the window, as of the present epoch."""
        return [
            alert.model_copy(update={"epoch": epoch, "fingerprint": alert.key})
            for alert, received_at in self._seen.get(job, ())
            if now - received_at <= self._window_s and (alert.kind not in OF_AN_EPOCH or alert.epoch == epoch)
        ]
