"""Failed saves, by place and rank, until one of the same kind goes well: heartbeats report them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from holdfast.models.setback import Place, Setback

_MOST_CHARS = 400


class Setbacks:
    """The failed saves of all jobs on a machine, each as of its newest epoch here."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._epochs: dict[str, int] = {}
        self._open: defaultdict[str, dict[tuple[Place, int], Setback]] = defaultdict(dict)

    def failed(self, job: str, epoch: int, place: Place, rank: int, reason: object) -> None:
        """Record that a save of a rank to a place failed."""
        if not self._is_newest(job, epoch):
            return
        before = self._open[job].get((place, rank))
        self._open[job][place, rank] = Setback(
            place=place,
            count=before.count + 1 if before else 1,
            since=before.since if before else self._now(),
            reason=str(reason)[:_MOST_CHARS],
        )

    def went_well(self, job: str, epoch: int, place: Place, rank: int) -> None:
        """Record that a save of a rank to a place is complete: its earlier failures no longer count."""
        if self._is_newest(job, epoch):
            self._open[job].pop((place, rank), None)

    def summaries(self, job: str, epoch: int) -> tuple[Setback, ...]:
        """Return one for each place where the newest save of a rank failed."""
        if self._epochs.get(job) != epoch:
            return ()
        of = self._open[job].items()
        found = {place: [each for (where, _), each in of if where is place] for place in Place}
        return tuple(_together(each) for each in found.values() if each)

    def _is_newest(self, job: str, epoch: int) -> bool:
        """Return whether a report is of the newest epoch; an epoch newer than before starts with no failures."""
        if epoch > self._epochs.get(job, -1):
            self._epochs[job] = epoch
            self._open.pop(job, None)
        return epoch == self._epochs[job]


def _together(ranks: list[Setback]) -> Setback:
    first = min(ranks, key=lambda each: each.since)
    return first.model_copy(update={"count": sum(each.count for each in ranks), "reason": ranks[-1].reason})
