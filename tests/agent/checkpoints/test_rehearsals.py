"""A real rank saves, and the agent rehearses its restore beside it; a state that would not come back is reported."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
from pathlib import Path

import pytest

from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.checkpoints.prover import Prover
from holdfast.agent.metrics import Metrics
from holdfast.agent.ranks.forkserver import ForkServer
from holdfast.models.agent import Prove
from holdfast.models.alert import AlertKind
from holdfast.models.checkpoint import Tier
from holdfast.models.rehearsal import Problem, Proof, Rehearsal, RehearsalOutcome, Rehearsed, summed_up
from holdfast.models.replica import StateDigests
from holdfast.settings import Settings
from holdfast.storage.checkpoints.save import buffers, room, slot_files
from tests.agent.gateway import FakeGateway, eventually, until
from tests.agent.scripts import fence
from tests.agent.shards import write_shard
from tests.agent.site import AgentProcess
from tests.agent.unrestorable import DAMAGE

TRAIN = """
import os, time, torch, holdfast
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = {"model": model, "optimizer": optimizer}
session = holdfast.Session()
start = session.restore(state)
for step in range(start + 1, 100_000):
    optimizer.zero_grad(); model(torch.randn(4, 8)).square().mean().backward(); optimizer.step()
    session.step(step)
    session.checkpoint(state)
    time.sleep(0.02)
"""


@pytest.fixture
def machine(torch_agent: AgentProcess) -> AgentProcess:
    """One whose fork server has torch."""
    return torch_agent


@pytest.fixture
def gateway(torch_agent: AgentProcess) -> FakeGateway:
    """The machine's."""
    return torch_agent.gateway


async def begin(machine: AgentProcess, job: str, script: str) -> None:
    machine.script(job, script)
    async with machine.client as client:
        await client.start(machine.start(job, ranks=(0,), world_size=1))


async def end(machine: AgentProcess, job: str) -> None:
    async with machine.client as client:
        await client.fence(fence(machine, job))
        await client.forget(fence(machine, job))


async def newest_rehearsal(machine: AgentProcess, job: str) -> Rehearsed | None:
    async with machine.client as client:
        (run,) = [run for run in (await client.state()).jobs if run.job == job]
    return run.rehearsed


@pytest.mark.e2e
@pytest.mark.torch
async def test_what_a_rank_saved_is_reported_as_digests(machine: AgentProcess, gateway: FakeGateway) -> None:
    """Of tensors, not of objects and single numbers; of some saves, the newest ones too; nothing that is lent stays."""
    machine.script("told", TRAIN)
    async with machine.client as client:
        await client.start(machine.start("told", ranks=(0,), world_size=2))

    def digests() -> list[StateDigests]:
        return [each for report in list(gateway.reports) if report.job == "told" for each in report.holds]

    until(lambda: len(digests()) >= 3, 120, "digests of three saves")
    await end(machine, "told")
    until(lambda: not list(machine.shm.rglob("digest-*")), 60, "loans to end")
    found = [each.by_rank() for each in digests()]
    names = {"model.weight", "model.bias"}
    names |= {
        f"optimizer.state.{name}.{kind}" for name in ("weight", "bias") for kind in ("exp_avg", "exp_avg_sq")
    }
    assert [each.keys() for each in found] == [{0}] * len(found)
    assert found[0][0].keys() == names, found[0]
    assert len({each[0]["model.weight"] for each in found}) == len(found), "it trains"
    assert [each.step for each in digests()] == sorted({each.step for each in digests()})


@pytest.mark.e2e
@pytest.mark.torch
async def test_a_restore_is_rehearsed_while_the_job_runs(machine: AgentProcess, gateway: FakeGateway) -> None:
    """After the first save, and on command; heartbeats name the step, nothing stays lent, and there is no alert."""
    await begin(machine, "fine", TRAIN)
    found = await eventually(lambda: newest_rehearsal(machine, "fine"), 120)
    assert (found.failed, found.untested) == ("", ""), found
    assert found.step > 0
    until(lambda: any(job.rehearsed for beat in gateway.heartbeats[-20:] for job in beat.jobs))
    async with machine.client as client:

        async def saved_since() -> bool:
            shards = (await client.state()).shards
            return any(shard.job == "fine" and shard.step > found.step for shard in shards)

        await eventually(saved_since)
        order = Prove(job="fine", incarnation=machine.incarnation)
        (again,) = await client.prove(order)
        assert again.outcome is RehearsalOutcome.PROVEN, again.result
        assert again.step > found.step
        assert again.proof
        assert again.proof.items > 5
        (peer,) = await client.prove(order.model_copy(update={"tier": Tier.PEER, "ranks": (0,)}))
    assert peer.result == "not tested: no complete shard of it lies here"
    assert gateway.alerts(AlertKind.UNRESTORABLE, "fine") == []
    assert list((machine.shm / "transfers").glob("proof-*")) == []
    await end(machine, "fine")


@pytest.mark.e2e
@pytest.mark.torch
async def test_what_would_not_come_back_is_reported_while_the_job_runs(
    machine: AgentProcess, gateway: FakeGateway
) -> None:
    """Once, with the path in the state; the ranks go on."""
    await begin(machine, "lost", DAMAGE + TRAIN)
    (alert,) = until(lambda: gateway.alerts(AlertKind.UNRESTORABLE, "lost"), 120)
    assert alert.rank == 0
    assert alert.epoch == 1
    found = await newest_rehearsal(machine, "lost")
    assert found
    assert "not trusted" in found.failed
    (problem,) = alert.evidence["problems"]
    path = problem.partition(":")[0]
    assert found.failed.startswith(f"{path}: ")
    async with machine.client as client:
        (again,) = await client.prove(Prove(job="lost", incarnation=machine.incarnation, ranks=(0,)))
        before = (await client.state()).jobs
    assert again.outcome is RehearsalOutcome.FAILED
    assert again.proof
    assert again.proof.problems[0].path == path
    step = next(rank.step for run in before if run.job == "lost" for rank in run.ranks)

    async def goes_on() -> bool:
        async with machine.client as client:
            runs = (await client.state()).jobs
        return any(rank.step > step for run in runs if run.job == "lost" for rank in run.ranks)

    await eventually(goes_on)
    assert len(gateway.alerts(AlertKind.UNRESTORABLE, "lost")) == 1
    await end(machine, "lost")


@pytest.fixture
async def prover(tmp_path: Path) -> Prover:
    forks = ForkServer(["json"])
    return Prover(forks, Memory("m1", tmp_path / "shm"), Settings(home=tmp_path), Metrics(), "m1")


class Proofs:
    """Stands for the process that proves; does something beside it, and finds nothing wrong."""

    def __init__(self, prover: Prover, beside: object = None) -> None:
        self.paths: list[Path] = []
        self._beside = beside
        prover._run = self.run  # type: ignore[method-assign,assignment]

    async def run(
        self, _outcome_of: object, _what: str, _limit_s: float, _allowed: object, path: Path
    ) -> Proof:
        self.paths.append(path)
        if callable(self._beside):
            self._beside(path)
        return Proof.of([])


async def test_the_shard_is_lent_and_given_back(prover: Prover, tmp_path: Path) -> None:
    """The proof has another name for the file, and a successor lies ready, as for an upload."""
    folder = tmp_path / "shm" / "own" / "toy"
    path = write_shard(folder, step=7)
    proofs = Proofs(prover, lambda lent: lent_well(path, lent))
    found = await prover.shard("toy", 0)
    assert found.outcome is RehearsalOutcome.PROVEN
    assert (found.step, found.plan, found.machine) == (7, "plan", "m1")
    assert proofs.paths[0].parent.name == "transfers"
    assert not slot_files.is_lent(path)
    assert list(folder.glob("*.reserved")) == []


def lent_well(path: Path, lent: Path) -> None:
    assert lent.samefile(path)
    assert path.with_suffix(".reserved").exists()


async def test_without_room_it_is_read_where_it_lies(
    prover: Prover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And counts only if nothing was written over it meanwhile."""
    monkeypatch.setattr(room, "free_nbytes", lambda _: 1000)
    path = write_shard(tmp_path / "shm" / "own" / "toy", step=6, slot="b")
    path = write_shard(tmp_path / "shm" / "own" / "toy", step=7, slot="a")
    assert Proofs(prover).paths == []
    assert (await prover.shard("toy", 0)).outcome is RehearsalOutcome.PROVEN

    overwriting = Proofs(prover, write_again)
    found = await prover.shard("toy", 0)
    assert found.outcome is RehearsalOutcome.UNTESTED
    assert "shared memory has no room to hold it still" in found.why_not
    assert len(overwriting.paths) == 3
    assert not slot_files.is_lent(path)


async def test_the_only_buffer_of_a_rank_is_lent_though_there_is_no_room(
    prover: Prover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No successor is made for it, so the rank's saves wait; it is given back afterwards."""
    monkeypatch.setattr(room, "free_nbytes", lambda _: 1000)
    path = write_shard(tmp_path / "shm" / "own" / "toy", step=7)
    seen: list[tuple[bool, bool]] = []
    Proofs(prover, lambda _: seen.append((slot_files.is_lent(path), slot_files.is_reserved(path))))
    assert (await prover.shard("toy", 0)).outcome is RehearsalOutcome.PROVEN
    assert seen == [(True, False)]
    assert not slot_files.is_lent(path)


async def test_a_single_buffer_that_is_almost_always_being_written_is_proven(
    prover: Prover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at until it is complete, and again when a save began before it could be lent."""
    monkeypatch.setattr(room, "free_nbytes", lambda _: 1000)
    path = write_shard(tmp_path / "shm" / "own" / "toy", step=7)
    beginning = mmap_of(path)
    buffers.begin(beginning)
    asyncio.get_running_loop().call_later(0.1, lambda: write_shard(path.parent, step=8, slot="a"))
    lend, asked = slot_files.lend, []

    def lend_late(path: Path, step: int, name: Path) -> buffers.ShardHeader:
        asked.append(step)
        if len(asked) < 8:
            write_shard(path.parent, step=step + 1, slot="a")
        return lend(path, step, name)

    monkeypatch.setattr(slot_files, "lend", lend_late)
    Proofs(prover)
    found = await prover.shard("toy", 0)
    assert (found.outcome, found.step) == (RehearsalOutcome.PROVEN, 15), found.result
    assert asked == list(range(8, 16))


async def test_a_shard_that_was_never_completed_is_not_waited_for_for_long(
    prover: Prover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rank may have died while it wrote."""
    monkeypatch.setattr("holdfast.agent.checkpoints.prover._WRITING_S", 0.05)
    buffers.begin(mmap_of(write_shard(tmp_path / "shm" / "own" / "toy", step=7)))
    found = await prover.shard("toy", 0)
    assert found.result == "not tested: no complete shard of it lies here"


async def test_what_cannot_be_lent_is_reported(
    prover: Prover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: the shard stays as it is."""
    write_shard(tmp_path / "shm" / "own" / "toy", step=7)
    monkeypatch.setattr(os, "link", no_link)
    found = await prover.shard("toy", 0)
    assert "No space left on device" in found.result


def no_link(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def mmap_of(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def write_again(path: Path) -> None:
    header = buffers.read_header(path)
    assert header is not None
    slot = path.stem.rpartition("-")[2]
    write_shard(path.parent, step=header.step + 1, slot=slot)


async def test_a_machine_without_torch_says_so(tmp_path: Path) -> None:
    """Nothing is forked for it."""
    settings = Settings(home=tmp_path, preload="json")
    prover = Prover(ForkServer(["json"]), Memory("m1", tmp_path / "shm"), settings, Metrics(), "m1")
    assert "has no torch" in (await prover.shard("toy", 0)).result
    assert "has no torch" in (await prover.checkpoint("toy", 1, 1, "k")).result


def rehearsal(rank: int, step: int = 5, wrong: str = "", why_not: str = "") -> Rehearsal:
    proof = None if why_not else Proof.of([Problem(path="a.b", wrong=wrong)] if wrong else [])
    return Rehearsal(job="toy", rank=rank, step=step, tier=Tier.MEMORY, proof=proof, why_not=why_not)


def test_a_machine_reports_the_worst_and_the_lowest_step() -> None:
    """Proven only when all its ranks are."""
    assert summed_up((0, 1), []) is None
    assert summed_up((0, 1), [rehearsal(0)]) == Rehearsed()
    assert summed_up((0, 1), [rehearsal(0), rehearsal(1, 4)]) == Rehearsed(step=4)
    failed = summed_up((0, 1), [rehearsal(0), rehearsal(1, 4, "gone")])
    assert failed == Rehearsed(failed="a.b: gone (rank 1 at step 4)")
    untested = summed_up((0, 1), [rehearsal(0), rehearsal(1, why_not="no room")])
    assert untested == Rehearsed(untested="no room")
