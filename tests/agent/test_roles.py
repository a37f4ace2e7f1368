"""Replicas under a real agent: started, restarted one by one, found by the others, and ended with all they started."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Iterator

import psutil
import pytest

from holdfast.models.agent import Fence
from holdfast.models.roles import Member, Replica, ReplicaPhase, ReplicaState, Restart, RolePlan, RolesOfJob
from tests.agent.gateway import FakeGateway, eventually, until
from tests.agent.site import AgentProcess

NUMBERS = itertools.count(1)

WORKER = """
import os, subprocess, sys, time
from holdfast import roles
left = subprocess.Popen(["sleep", "600"], start_new_session=True)
print("replica", roles.role(), roles.index(), left.pid, flush=True)
roles.announce(4000 + roles.index())
for members in roles.watch("cache"):
    print("cache", members, flush=True)
"""
HANGS = """
import signal
from holdfast import roles
roles.announce(4000 + roles.index())
roles.alive()
signal.pause()
"""
FAILS = "raise SystemExit(3)\n"
RESTART = Restart(pause_s=0.05, longest_pause_s=0.1, failures=3)


class Roles:
    """Plans for one machine, and what it reports of them."""

    def __init__(self, agent: AgentProcess, gateway: FakeGateway, job: str) -> None:
        self.agent, self.gateway, self.job = agent, gateway, job
        self.version = ""

    def plan(self, *replicas: Replica, members: tuple[Member, ...] = ()) -> None:
        self.version = f"{self.job}-{next(NUMBERS)}"
        jobs = (
            RolesOfJob(
                job=self.job,
                code_version=self.agent.version(self.job),
                replicas=replicas,
                members=members,
            ),
        )
        self.gateway.plans[self.agent.machine] = RolePlan(version=self.version, jobs=jobs if replicas else ())

    def states(self) -> dict[tuple[str, int], ReplicaState]:
        """States in the newest heartbeat, once it is of this plan."""
        beat = self.gateway.heartbeats[-1] if self.gateway.heartbeats else None
        if beat is None or beat.plan != self.version:
            return {}
        return {(each.role, each.index): each for each in beat.replicas if each.job == self.job}

    def until(
        self, seen: Callable[[dict[tuple[str, int], ReplicaState]], object], what: str
    ) -> dict[tuple[str, int], ReplicaState]:
        return until(lambda: found if seen(found := self.states()) else {}, 120.0, what)

    def log(self, role: str, index: int, generation: int = 1) -> str:
        path = self.agent.folder / "logs" / self.job / f"{role}-{index}-g{generation}.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def roles(agent: AgentProcess, gateway: FakeGateway) -> Iterator[Roles]:
    made = Roles(agent, gateway, f"rl{next(NUMBERS)}")
    agent.script(made.job, WORKER)
    yield made
    made.plan()
    until(lambda: gateway.heartbeats[-1].plan == made.version and not gateway.heartbeats[-1].replicas, 120.0)


def order(role: str, index: int, generation: int = 1, **changes: object) -> Replica:
    fields = {"script": "train.py", "restart": RESTART, "stop_grace_s": 0.0, **changes}
    return Replica.model_validate({"role": role, "index": index, "generation": generation, **fields})


def announced(*keys: tuple[str, int]) -> Callable[[dict[tuple[str, int], ReplicaState]], bool]:
    return lambda found: all(key in found and found[key].address for key in keys)


def test_a_replica_that_is_killed_starts_again_alone(roles: Roles) -> None:
    """The other one keeps its process; what the killed one had started in a session of its own is gone."""
    roles.plan(order("rollout", 0), order("rollout", 1))
    before = roles.until(announced(("rollout", 0), ("rollout", 1)), "both announced")
    left = int(roles.log("rollout", 0).split()[3])
    assert psutil.Process(before["rollout", 0].pid).nice() == min(19, os.nice(0) + 15)  # ranks: 10 more
    os.kill(before["rollout", 0].pid, signal.SIGKILL)
    after = roles.until(
        lambda found: (
            announced(("rollout", 0))(found) and found["rollout", 0].pid != before["rollout", 0].pid
        ),
        "the killed one to be back",
    )
    assert after["rollout", 1].pid == before["rollout", 1].pid
    assert (after["rollout", 0].restarts, after["rollout", 1].restarts) == (1, 0)
    assert after["rollout", 0].address.endswith(":4000")
    assert after["rollout", 0].failures == 0
    assert not psutil.pid_exists(left)


def test_a_replica_that_hangs_is_started_again(roles: Roles) -> None:
    """It runs, can be reached, and makes no progress; the reason is reported."""
    roles.agent.script(roles.job, HANGS)
    roles.plan(order("rollout", 0, restart=RESTART.model_copy(update={"silent_s": 0.5})))
    found = roles.until(lambda found: found and found["rollout", 0].restarts >= 1, "it is started again")
    assert found["rollout", 0].why.startswith("no roles.alive() for ")


def test_processes_learn_of_changes(roles: Roles) -> None:
    """Of members that are announced elsewhere, and of their end."""
    member = Member(role="cache", index=3, generation=1, address="10.0.0.9:77")
    roles.plan(order("rollout", 0))
    roles.until(announced(("rollout", 0)), "it announced itself")
    roles.plan(order("rollout", 0), members=(member,))
    until(lambda: "cache {3: '10.0.0.9:77'}" in roles.log("rollout", 0), 120.0)
    roles.plan(order("rollout", 0))
    until(lambda: roles.log("rollout", 0).endswith("cache {}\n"), 120.0)


def test_a_replica_that_keeps_failing_is_given_up_here(roles: Roles) -> None:
    """With the reason; a newer generation is a new replica."""
    roles.agent.script(roles.job, FAILS)
    roles.plan(order("rollout", 0))
    failed = roles.until(
        lambda found: ("rollout", 0) in found and found["rollout", 0].phase is ReplicaPhase.FAILED, "it fails"
    )["rollout", 0]
    assert failed.why == "exit status 3; 3 failures in a row (restart.failures)"
    assert (failed.restarts, failed.failures, failed.pid) == (2, 3, 0)
    roles.plan(order("rollout", 0, generation=2))
    roles.until(lambda found: ("rollout", 0) in found and found["rollout", 0].generation == 2, "a new one")


def test_an_older_generation_is_refused(roles: Roles) -> None:
    """A plan that came late starts nothing; the present one ends with it, as it is in no plan."""
    roles.plan(order("rollout", 0, generation=5))
    pid = roles.until(announced(("rollout", 0)), "it runs")["rollout", 0].pid
    roles.plan(order("rollout", 0, generation=4))
    until(lambda: roles.gateway.heartbeats[-1].plan == roles.version and not roles.states(), 120.0)
    assert not psutil.pid_exists(pid)


def test_a_rank_announces_itself_too(roles: Roles) -> None:
    """As the role trainer, of its epoch; its job has no replica here."""
    start = roles.agent.start(roles.job, ranks=(0,), world_size=1)

    async def run() -> None:
        async with roles.agent.client as client:
            await client.start(start)
            roles.plan(order("rollout", 0))
            found = roles.until(announced(("trainer", 0), ("rollout", 0)), "both announced")
            assert found["trainer", 0].generation == start.epoch
            await client.forget(Fence(job=roles.job, epoch=start.epoch, incarnation=roles.agent.incarnation))

            async def ended() -> bool:
                return not any(each.job == roles.job for each in roles.gateway.heartbeats[-1].replicas)

            await eventually(ended)
            assert not psutil.pid_exists(found["rollout", 0].pid)

    asyncio.run(run())
