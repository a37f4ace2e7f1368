"""Reports what the ranks hold, so that replicas can be compared: digests of some saves of an epoch.

The ranks do none of this work, and nothing waits for it: a process of the lowest priority reads what they saved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.agent.checkpoints.prover import Prover
from holdfast.agent.metrics import Metrics
from holdfast.agent.ranks.run import Run
from holdfast.errors import UnavailableError
from holdfast.models.replica import StateDigests
from holdfast.policies.detect.replica_rounds import interval, round_of

_log = logging.getLogger(__name__)


@dataclass
class _Job:
    """One run, and its save that is digested."""

    run: Run
    round: int = 0
    step: int = 0
    saved: dict[int, Path] = field(default_factory=dict)
    lends: bool = False
    """A save overwrote what was read where it lay: from then on it is held still."""
    work: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        return self.work is not None and not self.work.done()


class Comparisons:
    """Gets every save that all ranks have. Digests one save of each job at a time; no round waits for another."""

    def __init__(
        self, prover: Prover, report: Callable[[Run, StateDigests], None], metrics: Metrics, every_steps: int
    ) -> None:
        self._prover = prover
        self._report = report
        self._metrics = metrics
        self._every = every_steps
        self._jobs: dict[str, _Job] = {}

    def saved(self, run: Run, rank: int, step: int, path: Path) -> None:
        """Have a save that is complete on all ranks digested if it is a round's first. Called on the event loop."""
        start = run.start
        every = interval(self._every, start.s3_every_steps, start.retention.keep_last)
        number = round_of(step - start.restore.step, every, resumed=start.restore.step > 0)
        if not number or start.world_size < 2 or start.replay is not None or self._prover.why_not:
            return
        known = self._jobs.get(start.job)
        if known is None or known.run is not run:
            self._forget_ended()
            known = self._jobs[start.job] = _Job(run)
        if step != known.step:
            if number <= known.round or known.busy:
                return
            known.round, known.step, known.saved = number, step, {}
        known.saved[rank] = path
        if known.saved.keys() >= set(start.ranks) and not known.busy:
            known.work = asyncio.get_running_loop().create_task(self._digest(known, step, dict(known.saved)))

    def close(self) -> None:
        """Start no further digests."""
        for job in self._jobs.values():
            if job.work is not None:
                job.work.cancel()
        self._jobs.clear()

    async def _digest(self, job: _Job, step: int, saved: dict[int, Path]) -> None:
        outcome = "failed"
        try:
            found = await self._prover.digests(step, saved, lend=job.lends)
            job.lends |= found is None
            outcome = "told" if found else "overwritten"
            if found is not None and job.run.running:
                self._report(job.run, found)
        except UnavailableError as error:
            _log.warning("job %s step %d: replicas are not compared: %s", job.run.start.job, step, error)
        except Exception:
            _log.exception("job %s step %d: replicas are not compared", job.run.start.job, step)
        finally:
            self._metrics.digests.labels(outcome).inc()

    def _forget_ended(self) -> None:
        for name in [name for name, job in self._jobs.items() if not job.run.running and not job.busy]:
            del self._jobs[name]
