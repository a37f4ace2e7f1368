"""Rehearses restores beside a running job: after the first save, after each new plan or version of the code, and again.

A failure is reported at once: the job still runs, and an older checkpoint may still be good.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.agent.checkpoints.prover import Prover
from holdfast.agent.ranks.run import Run
from holdfast.models.rehearsal import Rehearsal, RehearsalOutcome, Rehearsed, summed_up
from holdfast.storage.checkpoints.save import buffers

_log = logging.getLogger(__name__)

CALM_S = 2.0
"""After a rank's first save: a recovery goes on for a while, and its first steps should have the cores."""
LOOK_S = 1.0
"""Between two looks at the plan of a rank's newest shard."""
AGAIN_S = {RehearsalOutcome.PROVEN: 3600.0, RehearsalOutcome.UNTESTED: 300.0, RehearsalOutcome.FAILED: 60.0}
"""So long after a rehearsal the next one of the same plan: objects may change without a new plan; a failure may be
fixed, or turn out to have been transient."""


@dataclass
class _Rank:
    """The rehearsals of one rank in its present run."""

    run: Run
    path: Path
    """Of its newest shard."""
    looked_at: float = 0.0
    tested_at: float = 0.0
    found: Rehearsal | None = None
    reported: str = ""
    """The failure that was reported last."""


def _next_of(known: _Rank | None, run: Run, path: Path) -> _Rank:
    """Return a rank in its new ``run``, with the proof of the run before where it holds: same code; same plan later.

    A restore by a proven plan changes nothing about it, and in the first seconds after a recovery the steps need the
    processors. A job that went back behind the proven step, or began again, may train on another way: a proof of steps
    that it has not done is none of its own.
    """
    if (
        known is not None
        and known.found is not None
        and known.found.outcome is RehearsalOutcome.PROVEN
        and known.run.start.code_version == run.start.code_version
        and known.found.step <= run.start.restore.step
    ):
        return _Rank(run, path, tested_at=known.tested_at, found=known.found)
    return _Rank(run, path)


class Rehearsals:
    """Gets every save. Runs one rehearsal at a time on the machine; a rehearsal that is due waits for its turn."""

    def __init__(
        self,
        prover: Prover,
        failed: Callable[[Run, Rehearsal], None],
        *,
        calm_s: float = CALM_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prover = prover
        self._failed = failed
        self._calm_s = calm_s
        self._now = now
        self._ranks: dict[tuple[str, int], _Rank] = {}
        self._due: dict[tuple[str, int], None] = {}
        self._work: asyncio.Task[None] | None = None

    def saved(self, run: Run, rank: int, path: Path) -> None:
        """Have a shard that is complete in memory rehearsed if that is due. Called on the event loop."""
        if run.start.replay is not None or self._prover.why_not:
            return
        who, now = (run.start.job, rank), self._now()
        known = self._ranks.get(who)
        if known is None or known.run is not run:
            self._forget_ended(run.start.job)
            known = self._ranks[who] = _next_of(known, run, path)
            # A job may save once in an hour: its first shard must not wait for the second.
            asyncio.get_running_loop().call_later(self._calm_s, self._look, who, known)
        known.path = path
        if known.looked_at and now - known.looked_at >= LOOK_S:
            self._look(who, known)

    def summary(self, run: Run) -> Rehearsed | None:
        """Return the rehearsals of the ranks of ``run`` for heartbeats."""
        if why := self._prover.why_not:
            return Rehearsed(untested=why)
        known = [self._ranks.get((run.start.job, rank)) for rank in run.start.ranks]
        found = [
            each.found for each in known if each is not None and each.run is run and each.found is not None
        ]
        return summed_up(run.start.ranks, found)

    def note(self, run: Run, found: Rehearsal) -> None:
        """Keep the result of a rehearsal of a rank of ``run``, ordered by any caller; report a new failure."""
        assert found.rank is not None
        known = self._ranks.get((run.start.job, found.rank))
        if known is None or known.run is not run:
            return
        known.found, known.tested_at = found, self._now()
        failure = "; ".join(map(str, found.proof.problems)) if found.proof else ""
        if failure and failure != known.reported:
            _log.error("job %s rank %s step %d: %s", found.job, found.rank, found.step, found.result)
            self._failed(run, found)
        if found.outcome is not RehearsalOutcome.UNTESTED:
            known.reported = failure

    def close(self) -> None:
        """Start no further rehearsals."""
        self._due.clear()
        if self._work is not None:
            self._work.cancel()

    def _look(self, who: tuple[str, int], known: _Rank) -> None:
        known.looked_at = self._now()
        if self._ranks.get(who) is known and who not in self._due and self._is_due(known):
            self._due[who] = None
            self._start()

    def _is_due(self, known: _Rank) -> bool:
        found = known.found
        if found is None or self._now() - known.tested_at >= AGAIN_S[found.outcome]:
            return True
        header = buffers.read_header(known.path)
        return header is not None and header.plan != found.plan and header.epoch == known.run.start.epoch

    def _forget_ended(self, but: str) -> None:
        """Forget jobs that run no more; of the job ``but``, whose next run saves now, the ranks to come need theirs."""
        for who in [who for who, known in self._ranks.items() if not known.run.running and who[0] != but]:
            del self._ranks[who]

    def _start(self) -> None:
        if self._work is None or self._work.done():
            self._work = asyncio.get_running_loop().create_task(self._rehearse())

    async def _rehearse(self) -> None:
        while self._due:
            who = next(iter(self._due))
            known = self._ranks.get(who)  # None: its job ended, and was forgotten for one that saves
            try:
                if known is not None and known.run.running:
                    found = await self._prover.shard(*who, allowed=known.run.allowed(who[1]))
                    self.note(known.run, found)
            except Exception:
                _log.exception("job %s rank %d is not rehearsed", *who)
            finally:
                self._due.pop(who, None)
