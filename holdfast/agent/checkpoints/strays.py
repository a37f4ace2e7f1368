"""Shards that no rank needs here any more: their memory is freed once those that replace them are saved.

After a job shrank or grew, or its copies went to other peers, machines hold slots of ranks that run, or are copied,
elsewhere now, beside those of the present ranks.
"""

from __future__ import annotations

import asyncio
import logging

from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.ranks.run import Run

_log = logging.getLogger(__name__)

KEPT_S = 10.0
"""They stay for so long after the first save that all ranks have: the peers' copies of it may be late."""


class Strays:
    """One for all runs of an agent."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._since: dict[tuple[str, int], float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def common(self, run: Run, now: float) -> None:
        """Handle a save that all ranks have, at ``now`` (monotonic seconds)."""
        start = run.start
        if start.replay is not None or (not start.restore.saved_by and start.keeps_ranks is None):
            return
        since = self._since.setdefault((start.job, start.epoch), now)
        if now - since <= KEPT_S:
            return
        self._since[start.job, start.epoch] = float("inf")  # once an epoch
        task = asyncio.get_running_loop().create_task(self._drop(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drop(self, run: Run) -> None:
        start = run.start
        try:
            dropped = await asyncio.to_thread(
                self._memory.drop_strays,
                start.job,
                start.epoch,
                start.world_size,
                start.ranks,
                start.keeps_ranks,
            )
        except OSError as error:
            _log.warning("job %s: shards that are not needed here any more stay: %s", start.job, error)
        else:
            if dropped:
                _log.info(
                    "job %s: %d shards that are not needed here any more are freed", start.job, len(dropped)
                )
