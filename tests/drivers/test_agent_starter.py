"""Agents that are started together: their fork servers come from one process that loaded the libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from holdfast import secret
from holdfast.agent.ranks.forkserver import ADDRESS
from holdfast.drivers import agent_starter, processes
from holdfast.drivers.local import LocalDriver, machine_dir
from holdfast.models.machine import Scope
from holdfast.paths import ENV_AGENT, ENV_MACHINE_DIR, of_agent
from holdfast.testing.driver_conformance import wait_until
from tests.e2e.waiting import free_ports

pytestmark = pytest.mark.e2e

LIGHT = {"HOLDFAST_PRELOAD": "wave"}
"""A module that nothing else loads, in place of torch."""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[LocalDriver]:
    """Real agents, which no gateway answers; nothing of them is left afterwards."""
    secret.create(tmp_path / "secret")
    local = LocalDriver(tmp_path, environment=LIGHT | {"HOLDFAST_PORT": str(free_ports())})
    yield local
    for machine in local.machines():
        local.retire(machine.name)


def started(driver: LocalDriver, name: str) -> tuple[psutil.Process, psutil.Process]:
    """Wait until the machine's agent has forked something; return the agent and its fork server."""
    found: list[psutil.Process] = []

    def forks() -> bool:
        if (agent := processes.find_agent(machine_dir(driver.home, name))) is None:
            return False
        with suppress(psutil.NoSuchProcess):  # a tool that the agent ran ends meanwhile
            found[:] = [agent, *(child for child in agent.children() if child.children())]
        return len(found) > 1

    wait_until(forks)
    agent, server = found
    return agent, server


def shared(folder: Path) -> bool:
    return (folder / ADDRESS).is_socket()


def test_each_agent_has_a_fork_server_of_its_own(driver: LocalDriver) -> None:
    """A child of the agent, in its session, and by its environment a process of that machine alone."""
    names = driver.provision(2)
    for name in names:
        folder = machine_dir(driver.home, name)
        agent, server = started(driver, name)
        assert shared(folder)
        assert os.getsid(server.pid) == agent.pid
        assert "holdfast.agent.starter" in server.cmdline()
        assert f"{ENV_MACHINE_DIR}={folder}" in Path(f"/proc/{server.pid}/environ").read_text().split("\0")
        assert server in processes.find_all(folder)


def test_agents_share_what_they_loaded_and_are_listed_as_agents(driver: LocalDriver) -> None:
    """Each is a fork, with the environment of its order; it is found by its command, as one that was executed."""
    names = driver.provision(2)
    for name in names:
        agent, _ = started(driver, name)
        folder = machine_dir(driver.home, name)
        assert forked(agent, folder)
        assert f"holdfast.agent --machine {name} --home {driver.home}" in " ".join(agent.cmdline())
        assert Path(agent.cwd()) == folder
        assert f"{ENV_MACHINE_DIR}={folder}" in Path(f"/proc/{agent.pid}/environ").read_text().split("\0")
        assert os.getsid(agent.pid) == agent.pid


def test_an_agent_whose_libraries_differ_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that the dynamic linker reads at the start of a program has its effect."""
    monkeypatch.setattr(
        agent_starter, "start_alone", lambda *_: pytest.fail("it is started by the other one")
    )
    secret.create(tmp_path / "secret")
    local = LocalDriver(tmp_path, environment=LIGHT | {"HOLDFAST_PORT": str(free_ports())})
    with agent_starter.starting_together(tmp_path, local._environment(Path(agent_starter.ROOM))) as start:
        ours = local._environment
        monkeypatch.setattr(local, "_environment", lambda folder: {**ours(folder), "LD_BIND_NOW": "1"})
        local._boot("m0", start)
    try:
        agent, server = started(local, "m0")
        assert not forked(agent, machine_dir(tmp_path, "m0"))
        assert shared(machine_dir(tmp_path, "m0"))
        assert "LD_BIND_NOW=1" in Path(f"/proc/{agent.pid}/environ").read_text().split("\0")
        assert "LD_BIND_NOW=1" not in Path(f"/proc/{server.pid}/environ").read_text().split("\0")
    finally:
        processes.kill_all(machine_dir(tmp_path, "m0"))


def forked(agent: psutil.Process, folder: Path) -> bool:
    """Return whether it was forked from what started it: then its environment names the agents of its machine."""
    return f"\0{ENV_AGENT}={folder}:" in Path(f"/proc/{agent.pid}/environ").read_text()


def test_what_a_former_agent_started_is_known_by_its_incarnation(driver: LocalDriver) -> None:
    """The agent reports the incarnation that its fork server, and so every fork of it, has in its environment."""
    for name in driver.provision(2):
        folder = machine_dir(driver.home, name)
        _, server = started(driver, name)
        card = folder / "agent.json"
        wait_until(card.exists)
        own = of_agent(folder, json.loads(card.read_text())["incarnation"])
        assert f"{ENV_AGENT}={own}" in Path(f"/proc/{server.pid}/environ").read_text().split("\0")


def test_what_an_agent_leaves_is_found_and_killed(driver: LocalDriver) -> None:
    """Evicted after its agent died, nothing of the machine runs; the other one is not touched."""
    first, second = driver.provision(2)
    agent, server = started(driver, first)
    other, _ = started(driver, second)
    server.suspend()  # else it ends with the agent
    agent.kill()
    wait_until(lambda: not agent.is_running() or agent.status() == psutil.STATUS_ZOMBIE)
    assert server in processes.find_all(machine_dir(driver.home, first))
    driver.evict(first, Scope.CLUSTER, "agent gone")
    assert processes.find_all(machine_dir(driver.home, first)) == []
    assert other.is_running()


def test_agents_that_cannot_share_load_by_themselves(
    driver: LocalDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries that take too long to load together keep no machine from starting."""
    monkeypatch.setattr(agent_starter, "LOADED_S", 0.0)
    for name in driver.provision(2):
        started(driver, name)
        assert not shared(machine_dir(driver.home, name))


def test_a_path_without_room_is_refused() -> None:
    """The memory behind the variable belongs to others."""
    code = f"from holdfast.agent import shown_process; shown_process.environment({{'{ENV_MACHINE_DIR}': '/longer'}})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={ENV_MACHINE_DIR: "/short"},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert f"ValueError: {ENV_MACHINE_DIR}=/longer: longer than" in done.stderr
