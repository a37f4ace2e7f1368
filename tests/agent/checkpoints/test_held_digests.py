"""How shards are held while they are digested: where they lie, or lent; what is overwritten does not count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.checkpoints.prover import Prover
from holdfast.agent.metrics import Metrics
from holdfast.agent.ranks.forkserver import ForkServer
from holdfast.models.replica import StateDigests
from holdfast.settings import Settings
from holdfast.storage.checkpoints.save import room, slot_files
from tests.agent.shards import write_shard


class Machine:
    """Two ranks with two buffers each; a stand-in for the process that digests, which does something beside it."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "shm" / "own" / "toy"
        self.prover = Prover(
            ForkServer(["json"]), Memory("m1", root / "shm"), Settings(home=root), Metrics(), "m1"
        )
        self.prover._run = self._run  # type: ignore[method-assign,assignment]
        self.asked: list[dict[int, Path]] = []
        self.beside: Callable[[], object] = lambda: None
        self.shards: dict[int, Path] = {}
        for rank in (0, 1):
            write_shard(self.folder, rank, 6, slot="a")
            self.shards[rank] = write_shard(self.folder, rank, 7, slot="b")

    async def _run(
        self, _outcome_of: object, _what: str, _limit_s: float, step: int, files: dict[int, Path]
    ) -> StateDigests:
        self.asked.append(files)
        self.beside()
        return StateDigests.of(step, {rank: {"w": 1} for rank in files})

    @property
    def lent(self) -> list[bool]:
        return [slot_files.is_lent(path) for path in self.shards.values()]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def test_they_are_read_where_they_lie(machine: Machine) -> None:
    """Nothing is lent: the next saves find their files as they were."""
    seen: list[list[bool]] = []
    machine.beside = lambda: seen.append(machine.lent)
    found = await machine.prover.digests(7, machine.shards, lend=False)
    assert found is not None
    assert found.by_rank().keys() == {0, 1}
    assert (machine.asked, seen) == ([machine.shards], [[False, False]])


async def test_a_save_over_one_of_them_spoils_it(machine: Machine) -> None:
    """As does one that came before it was looked at."""
    machine.beside = lambda: write_shard(machine.folder, 1, 9, slot="b")
    assert await machine.prover.digests(7, machine.shards, lend=False) is None
    machine.asked.clear()
    assert await machine.prover.digests(7, machine.shards, lend=False) is None
    assert machine.asked == []


async def test_lent_they_stay_as_they_are(machine: Machine) -> None:
    """Each has a name of its own and a successor; both are gone afterwards."""

    def beside() -> None:
        assert machine.lent == [True, True]
        assert all(slot_files.is_reserved(path) for path in machine.shards.values())
        write_shard(machine.folder, 1, 9, slot="b")

    machine.beside = beside
    found = await machine.prover.digests(7, machine.shards, lend=True)
    assert found is not None
    assert all(path.parent.name == "transfers" for path in machine.asked[0].values())
    assert len({path.name for path in machine.asked[0].values()}) == 2
    assert machine.lent == [False, False]
    assert list(machine.folder.parent.parent.rglob("digest-*")) == []


async def test_without_room_they_are_read_where_they_lie(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so is the only buffer of a rank: its saves must not wait for this."""
    monkeypatch.setattr(room, "free_nbytes", lambda _: 100)
    assert await machine.prover.digests(7, machine.shards, lend=True) is not None
    assert machine.asked == [machine.shards]
    monkeypatch.setattr(room, "free_nbytes", lambda _: 1 << 40)
    for rank in (0, 1):
        (machine.folder / f"r{rank}-a.shard").unlink()
    assert await machine.prover.digests(7, machine.shards, lend=True) is not None
    assert machine.asked[1:] == [machine.shards]


async def test_what_was_lent_is_given_back_when_another_is_gone(machine: Machine) -> None:
    """Nothing is digested then."""
    machine.shards[2] = machine.folder / "r2-a.shard"
    assert await machine.prover.digests(7, machine.shards, lend=True) is None
    assert (machine.asked, machine.lent) == ([], [False, False, False])
