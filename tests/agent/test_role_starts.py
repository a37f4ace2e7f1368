"""Many replicas that are to start on one machine do so in turn, and leave the processor to the ranks between."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.roles import replica
from holdfast.agent.roles.files import RoleFiles
from holdfast.agent.roles.replica import Means, Supervised
from holdfast.models.roles import Replica, ReplicaPhase


class FakeWatched:
    """A process that runs until it is stopped."""

    def __init__(self, _forked: object, _index: int) -> None:
        self.pid, self.gone = 1, asyncio.get_running_loop().create_future()


async def stopped(processes: list[FakeWatched], _grace_s: float = 0) -> None:
    for each in processes:
        if not each.gone.done():
            each.gone.set_result(-9)


async def nothing(*_: object, **__: object) -> None:
    """Stand for what needs a machine."""


def means(folder: Path, turns: int) -> Means:
    around: Any = SimpleNamespace(
        open=lambda name, given=None: {} if given is not None else "", end=nothing, remove=lambda _: None
    )
    forks: Any = SimpleNamespace(run_soon=nothing)
    files = RoleFiles(folder / "roles", "127.0.0.1")
    return Means("m0", folder, folder, forks, around, around, files, lambda: None, asyncio.Semaphore(turns))


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "Watched", FakeWatched)
    monkeypatch.setattr(replica, "stop", stopped)


def replicas(count: int, around: Means, folder: Path) -> list[Supervised]:
    orders = (Replica(role="rollout", index=at, generation=1, script="r.py") for at in range(count))
    return [Supervised("rl", each, folder, around) for each in orders]


async def until(count: int, all_of: list[Supervised]) -> None:
    async with asyncio.timeout(120):
        while sum(each.running for each in all_of) < count:  # noqa: ASYNC110  (a fake process sets no event)
            await asyncio.sleep(0.001)


def test_starts_take_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The next ones start when those before announced an address or ended; those that wait are not shown as running."""
    monkeypatch.setattr(replica, "STARTS_S", 3600.0)

    async def run() -> None:
        around = means(tmp_path, turns=2)
        all_of = replicas(6, around, tmp_path)
        await until(2, all_of)
        await asyncio.sleep(0.05)
        assert [each.running for each in all_of].count(True) == 2
        waiting = [each for each in all_of if not each.running]
        assert {each.phase for each in waiting} == {ReplicaPhase.PAUSING}
        first = next(each for each in all_of if each.running)
        await first.end()
        await until(2, all_of)
        await asyncio.gather(*(each.end() for each in all_of))
        assert not any(each.running for each in all_of)
        again = replicas(2, around, tmp_path)
        await until(2, again)  # no turn was lost
        await asyncio.gather(*(each.end() for each in again))

    asyncio.run(run())


def test_a_start_that_announces_nothing_gives_its_turn_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(replica, "STARTS_S", 0.01)

    async def run() -> None:
        all_of = replicas(5, means(tmp_path, turns=1), tmp_path)
        await until(5, all_of)
        await asyncio.gather(*(each.end() for each in all_of))

    asyncio.run(run())
