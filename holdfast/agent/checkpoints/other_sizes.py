"""Shards that another number of ranks saved: their memory is freed once the ranks that read them have saves too.

After a job shrank or grew, machines hold slots of ranks that run elsewhere now, beside those of the present ranks.
"""

from __future__ import annotations

import asyncio
import logging

from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.ranks.run import Run

_log = logging.getLogger(__name__)

KEPT_S = 10.0
"""They stay for so long after the first save that all ranks have: the peers' copies of it may be late."""


class OtherSizes:
    """One for all runs of an agent."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._since: dict[tuple[str, int], float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def common(self, run: Run, now: float) -> None:
        """Handle a save that all ranks have, at ``now`` (monotonic seconds)."""
        start = run.start
        if not start.restore.saved_by or start.replay is not None:
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
                self._memory.drop_other_sizes, start.job, start.epoch, start.world_size, start.ranks
            )
        except OSError as error:
            _log.warning("job %s: shards of another number of ranks stay: %s", start.job, error)
        else:
            _log.info("job %s: %d shards of another number of ranks are freed", start.job, len(dropped))
