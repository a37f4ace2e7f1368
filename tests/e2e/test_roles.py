"""The RL example on a real site, while its rollout workers are killed: the trainer loses no step."""

from __future__ import annotations

import itertools
import math
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import jobfile
from holdfast.models.machine import MachineState
from holdfast.storage.code import versions
from tests.e2e.site import EXAMPLES, Site
from tests.e2e.waiting import DEADLINE_S, wait_for

MINUTES = 10


def submit(site: Site, name: str, example: str, **own: int) -> None:
    """Submit an example with roles as it is, without an end; ``own``: machines that roles have for themselves."""
    folder: Path = EXAMPLES / example
    spec = jobfile.read(folder / "job.yaml")
    roles = {
        role: known.model_copy(update={"own_machines": own.get(role, 0)})
        for role, known in spec.roles.items()
    }
    spec = spec.model_copy(update={"roles": roles})
    site.have_standbys(spec.machines + (3 * sum(own.values()) or 1))  # two more in the place of each
    spec = spec.model_copy(update={"name": name, "code": str(folder), "args": ("--steps", "100000")})
    body = {
        "spec": spec.model_dump(mode="json"),
        "code_version": versions.store(site.store, name, folder),
    }
    answer = site.http.post("/v1/jobs", json=body)
    assert answer.is_success, answer.text


class Roles:
    """A job's ranks and replicas, as the status has them."""

    def __init__(self, site: Site, name: str) -> None:
        self.site, self.name = site, name

    def status(self) -> dict[str, Any]:
        found: list[dict[str, Any]] = self.site.http.get("/v1/status").json()["jobs"]
        return next(job for job in found if job["name"] == self.name)

    def role(self, name: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = self.status()["roles"]
        return next(role for role in found if role["name"] == name)

    def all_run(self, role: str) -> bool:
        """Whether each replica runs and has announced its address."""
        found = self.role(role)
        there = [place for place in found["places"] if place["phase"] == "running" and place["address"]]
        return len(there) == found["replicas"]

    def trainer(self) -> list[tuple[int, int]]:
        return [(rank["rank"], rank["pid"]) for rank in self.status()["ranks"]]

    def step(self) -> int:
        return int(self.status()["step"])

    def kill_one(self, role: str, turn: int) -> int:
        """SIGKILL one replica; return its pid, or 0 when there was none to be killed."""
        pids = [place["pid"] for place in self.role(role)["places"] if place["pid"]]
        with suppress(ProcessLookupError, IndexError, ZeroDivisionError):
            os.kill(pid := pids[turn % len(pids)], signal.SIGKILL)
            return int(pid)
        return 0

    def describe(self) -> str:
        return str({key: self.status()[key] for key in ("state", "epoch", "step", "roles")})


def kill_rollouts(roles: Roles, most: float, seconds: float, every_s: float) -> int:
    """Kill one after the other, ``most`` processes within so many ``seconds``; return how many were killed."""
    killed, end = set(), time.monotonic() + seconds
    for turn in itertools.count():
        if len(killed - {0}) >= most or time.monotonic() > end:
            break
        killed.add(roles.kill_one("rollout", turn))
        time.sleep(every_s)
    return len(killed - {0})


def require_the_trainer_went_on(roles: Roles, before: list[tuple[int, int]], name: str) -> None:
    assert roles.trainer() == before
    assert roles.status()["epoch"] == 1
    assert roles.site.ledger.incidents(job=name) == []


def test_killed_rollouts_cost_the_trainer_no_step(site: Site, name: str) -> None:
    """Its processes stay, no incident is opened, steps go on, and each worker is back after it was killed."""
    submit(site, name, "rl")
    roles = Roles(site, name)
    wait_for(
        roles.describe,
        lambda: roles.step() >= 3 and roles.all_run("rollout") and roles.role("reward")["ready"],
    )
    before, at_step = roles.trainer(), roles.step()
    # More than there are workers: some are killed twice.
    kills = kill_rollouts(roles, 6, DEADLINE_S, 0.5)
    assert kills == 6, roles.describe()
    wait_for(roles.describe, lambda: roles.all_run("rollout"))
    wait_for(roles.describe, lambda: roles.step() > at_step + 50)
    wait_for(roles.describe, lambda: roles.role("rollout")["restarts"] >= kills)
    require_the_trainer_went_on(roles, before, name)
    answer = site.http.post(f"/v1/jobs/{name}/roles/rollout/scale", json={"replicas": 2})
    assert answer.is_success, answer.text
    wait_for(roles.describe, lambda: len(roles.role("rollout")["places"]) == 2 and roles.all_run("rollout"))
    require_the_trainer_went_on(roles, before, name)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_ten_minutes_of_killed_rollouts_never_stop_the_trainer(site: Site, name: str) -> None:
    """It makes steps in each of them, in the same processes, and every worker is back at the end."""
    submit(site, name, "rl")
    roles = Roles(site, name)
    wait_for(roles.describe, lambda: roles.step() >= 20 and roles.all_run("rollout"))
    before, kills = roles.trainer(), 0
    for _ in range(MINUTES):
        at_step = roles.step()
        kills += kill_rollouts(roles, math.inf, 60.0, 3.0)
        assert roles.step() > at_step, roles.describe()
    assert kills >= 10 * MINUTES
    require_the_trainer_went_on(roles, before, name)
    wait_for(roles.describe, lambda: roles.all_run("rollout"))


@pytest.mark.thorough
def test_replicas_of_a_lost_machine_are_placed_on_others(site: Site, name: str) -> None:
    """The trainer recovers as ever; workers elsewhere keep their processes."""
    submit(site, name, "rl")
    roles = Roles(site, name)
    wait_for(roles.describe, lambda: roles.step() >= 3 and roles.all_run("rollout"))
    lost = site.job(name).machines[1]
    kept = {p["index"]: p["pid"] for p in roles.role("rollout")["places"] if p["machine"] != lost}
    answer = site.http.post(f"/v1/machines/{lost}/evict", json={"reason": "test"})
    assert answer.is_success, answer.text
    wait_for(roles.describe, lambda: site.ledger.machine(lost).state is MachineState.CORDONED)
    wait_for(
        roles.describe,
        lambda: (
            roles.all_run("rollout") and all(p["machine"] != lost for p in roles.role("rollout")["places"])
        ),
    )
    now = {p["index"]: p["pid"] for p in roles.role("rollout")["places"]}
    assert {index: now[index] for index in kept} == kept
    assert {p["generation"] for p in roles.role("rollout")["places"] if p["index"] not in kept} == {2}


@pytest.mark.thorough
def test_machines_of_a_roles_own_come_and_go_and_the_trainer_loses_no_step(site: Site, name: str) -> None:
    """One dies, the replacement is evicted by hand, and a stop gives the others back."""
    submit(site, name, "rl", rollout=1)
    roles = Roles(site, name)

    def own() -> list[str]:
        return [each.name for each in site.ledger.machines(MachineState.ACTIVE, name, role="rollout")]

    def on_own(machine: str) -> bool:
        return own() == [machine] and {each["machine"] for each in roles.role("rollout")["places"]} == {
            machine
        }

    wait_for(roles.describe, lambda: roles.step() >= 3 and roles.all_run("rollout"))
    before, (first,) = roles.trainer(), own()
    assert on_own(first)
    assert first not in site.job(name).machines
    site.fault("kill-machine", first)
    wait_for(
        roles.describe, lambda: own() not in ([], [first]) and roles.all_run("rollout") and on_own(own()[0])
    )
    (second,) = own()
    at_step = roles.step()
    answer = site.http.post(f"/v1/machines/{second}/evict", json={"reason": "test"})
    assert answer.is_success, answer.text
    wait_for(roles.describe, lambda: site.ledger.machine(second).state is MachineState.CORDONED)
    wait_for(roles.describe, lambda: own() != [] and roles.all_run("rollout") and on_own(own()[0]))
    wait_for(roles.describe, lambda: roles.step() > at_step + 20)
    require_the_trainer_went_on(roles, before, name)
    answer = site.http.post(f"/v1/jobs/{name}/stop")
    assert answer.is_success, answer.text
    wait_for(roles.describe, lambda: site.ledger.machines(job=name) == [])


@pytest.mark.thorough
def test_a_parameter_server_that_is_killed_is_filled_again(site: Site, name: str) -> None:
    """Its workers are killed too; the trainer goes on, and the loss falls on."""
    submit(site, name, "parameter_server")
    roles = Roles(site, name)
    wait_for(roles.describe, lambda: roles.step() >= 20 and roles.all_run("worker"))
    before = roles.trainer()
    log = site.home / "machines" / site.job(name).machines[0] / "logs" / name / "e1-r0.log"
    filled = 2
    wait_for(roles.describe, lambda: log.read_text().count("filled:") == filled)  # as they were started
    for turn in range(6):
        wait_for(roles.describe, lambda turn=turn: roles.kill_one("worker", turn))
        time.sleep(0.5)
    assert roles.kill_one("server", 0)
    wait_for(
        lambda: f"{roles.describe()}\n{log.read_text()}",
        lambda: log.read_text().count("filled:") > filled,
    )
    at_step = roles.step()
    wait_for(roles.describe, lambda: roles.all_run("worker") and roles.all_run("server"))
    wait_for(roles.describe, lambda: roles.step() > at_step + 40)
    require_the_trainer_went_on(roles, before, name)
    losses = [float(line.split()[-1]) for line in log.read_text().splitlines() if "loss" in line]
    assert losses[-1] < losses[0] / 2, losses
