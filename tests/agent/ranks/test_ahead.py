"""Ranks that are started ahead: kept, taken over, given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.ranks import torch_files
from holdfast.agent.ranks.ahead import AheadRuns
from holdfast.agent.ranks.run import Run
from holdfast.errors import AheadError, StaleError
from holdfast.models.agent import Ahead, Rendezvous, Start, Waiting
from holdfast.models.checkpoint import RestoreOrder, Tier

START = Start(
    job="toy",
    epoch=2,
    incarnation="i1",
    script="train.py",
    code_version="v1",
    ranks=(0, 1),
    world_size=2,
    rendezvous=Rendezvous(host="127.0.0.1", port=1),
)
RESTORED = START.model_copy(
    update={"ahead": True, "restore": RestoreOrder(step=7, epoch=1, tier=Tier.MEMORY)}
)


class Runs:
    """Runs without processes; tests say who waits and who has ended."""

    def __init__(self) -> None:
        self.launched: list[Any] = []
        self.ended: list[Any] = []
        self.unused: list[str] = []
        self.over = asyncio.Event()
        self.ahead = AheadRuns(self._launch, self._end, self._unused)

    async def keep(self, start: Start = START, keep_s: float = 60.0) -> Waiting:
        """Start them, or keep them."""
        return await self.ahead.keep(Ahead(start=start, keep_s=keep_s))

    async def _launch(self, start: Start, _on_exit: Callable[..., None]) -> Any:
        rows = {rank: SimpleNamespace(waits=False) for rank in start.ranks}
        gone = {rank: asyncio.get_running_loop().create_future() for rank in start.ranks}
        processes = {
            rank: SimpleNamespace(rank=rank, gone=gone[rank], exit_code=None) for rank in start.ranks
        }
        run = SimpleNamespace(
            start=start,
            board=SimpleNamespace(rows=rows),
            processes=processes,
            log_tail=lambda _: "out of memory\n",
        )
        self.launched.append(run)
        return run

    async def _end(self, run: Any) -> None:
        self.ended.append(run)

    async def _unused(self, job: str) -> None:
        self.unused.append(job)
        self.over.set()

    def all_wait(self) -> None:
        """All ranks of the newest run are at their restore."""
        for row in self.launched[-1].board.rows.values():
            row.waits = True


async def test_ranks_that_wait_are_taken_over_once() -> None:
    """By the start that differs only in the state that it names."""
    runs = Runs()
    assert await runs.keep() == Waiting()
    runs.all_wait()
    assert await runs.keep() == Waiting(ready=True)
    assert len(runs.launched) == 1
    assert await runs.ahead.take(RESTORED) is runs.launched[0]
    assert runs.ended == []
    with pytest.raises(AheadError, match="epoch 2"):
        await runs.ahead.take(RESTORED)


@pytest.mark.parametrize(
    "other", [{"epoch": 3}, {"code_version": "v2"}, {"peer": "127.0.0.1:9"}, {"restore": RestoreOrder()}]
)
async def test_ranks_of_another_start_are_ended_first(other: dict[str, Any]) -> None:
    """Another epoch, code or place; or no state to hand over."""
    runs = Runs()
    await runs.keep()
    runs.all_wait()
    with pytest.raises(AheadError):
        await runs.ahead.take(RESTORED.model_copy(update=other))
    assert runs.ended == runs.launched
    assert "toy" not in runs.ahead


async def test_an_ordinary_start_ends_them() -> None:
    """A recovery came first: it forks its own."""
    runs = Runs()
    await runs.keep()
    runs.all_wait()
    assert await runs.ahead.take(RESTORED.model_copy(update={"ahead": False})) is None
    assert runs.ended == runs.launched


async def test_no_ranks_are_started_ahead_for_an_epoch_that_was_started() -> None:
    """The order waited for its turn behind the start, whose ranks do not run yet."""
    runs = Runs()
    await runs.keep()
    runs.all_wait()
    async with runs.ahead._locks["toy"]:
        starting = asyncio.create_task(runs.ahead.take(RESTORED))
        await asyncio.sleep(0)
        late = asyncio.create_task(runs.keep())
        await asyncio.sleep(0)
    assert await starting is runs.launched[0]
    with pytest.raises(StaleError, match="epoch 2 was started here"):
        await late
    assert len(runs.launched) == 1
    assert await runs.keep(START.model_copy(update={"epoch": 3})) == Waiting()


async def test_a_rank_that_ended_is_reported() -> None:
    """With the last line of its log; the rest is of no use then."""
    runs = Runs()
    await runs.keep()
    runs.all_wait()
    process = runs.launched[0].processes[1]
    process.exit_code = 1
    process.gone.set_result(1)
    assert (await runs.keep()).why_not == "rank 1 ended with status 1: out of memory"
    with pytest.raises(AheadError, match="out of memory"):
        await runs.ahead.take(RESTORED)


async def test_a_fence_of_their_epoch_ends_them() -> None:
    """One of the epoch before, which they follow, does not."""
    runs = Runs()
    await runs.keep()
    await runs.ahead.fence("toy", 1)
    assert runs.ended == []
    await runs.ahead.fence("toy", 2)
    assert runs.ended == runs.launched


async def test_ranks_that_are_not_wanted_in_time_end() -> None:
    """So nothing of a move that was given up stays on a standby."""
    runs = Runs()
    await runs.keep(keep_s=0.01)
    async with asyncio.timeout(60):
        await runs.over.wait()
    assert (runs.ended, runs.unused) == (runs.launched, ["toy"])


async def test_ranks_that_are_kept_for_longer_as_their_time_runs_out_stay() -> None:
    """The timer has fired already, and what it asks for waits behind the renewal."""
    runs = Runs()
    await runs.keep()
    async with runs.ahead._locks["toy"]:
        renewed = asyncio.create_task(runs.keep())
        await asyncio.sleep(0)  # it waits before what the timer asks for
        runs.ahead._over("toy", runs.ahead._kept["toy"].turn)
    await renewed
    await asyncio.gather(*runs.ahead._ending)
    assert (runs.ended, runs.unused) == ([], [])
    assert "toy" in runs.ahead


async def test_what_they_made_while_they_waited_is_removed_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data loader may share tensors before the ranks take over: these are no older epoch's."""
    asked: list[float] = []
    monkeypatch.setattr(torch_files, "remove", lambda _pids, since: asked.append(since))
    memory: Any = SimpleNamespace(root=tmp_path, own=lambda job: tmp_path / job)
    run = Run(START, "m1", tmp_path, memory, ahead=True)
    made_at = run.since
    await asyncio.sleep(0.01)
    run.begin(RESTORED, lambda _run, _process: None)
    await run.stop()
    assert asked == [made_at]
    assert run.since > made_at
