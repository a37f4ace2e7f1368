"""Replicas that do not end, and plans that fail: a machine still reaches the plan of its roles."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from holdfast.agent.roles import supervisor
from holdfast.agent.roles.files import RoleFiles
from holdfast.agent.roles.supervisor import Supervisor
from holdfast.errors import UnavailableError
from holdfast.models.roles import Replica, ReplicaPhase, ReplicaState, RolePlan, RolesOfJob


class FakeReplica:
    """One whose process may be stuck in the kernel."""

    made: ClassVar[list[FakeReplica]] = []
    stuck: ClassVar[bool] = False

    def __init__(self, job: str, order: Replica, code: Path, _means: object) -> None:
        self.job, self.order, self.code, self.code_version = job, order, code, ""
        self.ends, self.running, self.address, self.phase = False, True, "", ReplicaPhase.RUNNING
        self.made.append(self)

    def state(self) -> ReplicaState:
        order = self.order
        return ReplicaState(
            job=self.job,
            role=order.role,
            index=order.index,
            generation=order.generation,
            phase=self.phase,
        )

    async def end(self) -> None:
        self.ends = True
        if FakeReplica.stuck:
            raise UnavailableError("stuck in the kernel")
        self.running = False


PLAN = RolePlan(
    version="v1",
    jobs=(
        RolesOfJob(
            job="rl",
            code_version="c1",
            replicas=(Replica(role="rollout", index=0, generation=1, script="rollout.py"),),
        ),
    ),
)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeReplica]]:
    monkeypatch.setattr(supervisor, "Supervised", FakeReplica)
    monkeypatch.setattr(supervisor, "AGAIN_S", 0.01)
    yield FakeReplica.made
    FakeReplica.made.clear()
    FakeReplica.stuck = False


def supervise(folder: Path, failures: int, work: Callable[[Supervisor], Any]) -> None:
    """Run ``work`` beside a supervisor whose first checkouts fail in a way that was not thought of."""
    left = [failures]

    async def code(_job: str, _version: str) -> Path:
        if left[0]:
            left[0] -= 1
            raise RuntimeError("a torn archive")
        return folder

    async def run() -> None:
        means: Any = SimpleNamespace(files=RoleFiles(folder, "127.0.0.1"), changed=lambda: None)
        one = Supervisor(means, code, lambda _job: ())
        running = asyncio.create_task(one.run())
        await asyncio.sleep(0)  # it begins with empty folders
        await work(one)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


async def until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not seen():  # noqa: ASYNC110  (the thread of a replica sets no event)
            await asyncio.sleep(0.01)


def test_a_replica_that_did_not_die_starts_again_once_it_has(made: list[FakeReplica], tmp_path: Path) -> None:
    """It was ended when its machine was cut off; the plan that comes afterwards is the one of before."""

    async def work(one: Supervisor) -> None:
        one.take(PLAN)
        await until(lambda: len(made) == 1)
        FakeReplica.stuck = True
        await one.stop_all()
        assert len(one.states()) == 1, "it is reported as long as it may run"
        one.take(PLAN)
        FakeReplica.stuck = False
        await until(lambda: len(made) == 2)
        assert (made[0].running, made[1].ends) == (False, False)
        assert one.version == "v1"

    supervise(tmp_path, 0, work)


def test_a_job_whose_replica_does_not_die_is_not_forgotten(made: list[FakeReplica], tmp_path: Path) -> None:
    """The one who asks is not answered that nothing is left; it is ended later."""

    async def work(one: Supervisor) -> None:
        one.take(PLAN)
        await until(lambda: len(made) == 1)
        FakeReplica.stuck = True
        with pytest.raises(UnavailableError, match="replicas of job rl do not die"):
            await one.forget("rl")
        FakeReplica.stuck = False
        await until(lambda: not one.states())
        assert not made[0].running

    supervise(tmp_path, 0, work)


def test_a_plan_that_cannot_be_carried_out_is_tried_again(made: list[FakeReplica], tmp_path: Path) -> None:
    """Whatever the error: else the machine would go by its plan no more, and report that it does."""

    async def work(one: Supervisor) -> None:
        one.take(PLAN)
        await until(lambda: len(made) == 1)

    supervise(tmp_path, 2, work)


def test_a_replica_that_is_to_start_counts_as_running(made: list[FakeReplica], tmp_path: Path) -> None:
    """A machine that is cut off ends it before it does: another machine takes its place."""

    async def work(one: Supervisor) -> None:
        assert not one.running
        one.take(PLAN)
        assert one.running
        await until(lambda: len(made) == 1)
        made[0].running = False
        for phase, runs in ((ReplicaPhase.PAUSING, True), (ReplicaPhase.DONE, False)):
            made[0].phase = phase
            assert one.running is runs

    supervise(tmp_path, 1, work)
