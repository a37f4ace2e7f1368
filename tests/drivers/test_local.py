"""The local driver against the driver contract, and what is its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.drivers import from_settings, processes
from holdfast.drivers.base import Driver
from holdfast.drivers.local import LocalDriver, machine_dir, shm_dir
from holdfast.drivers.roster import RosterFile
from holdfast.errors import RefusedError, ReplacedUnitError, SettingsError, UnavailableError, UnknownError
from holdfast.models.machine import Scope
from holdfast.paths import ENV_MACHINE_DIR
from holdfast.settings import Settings
from holdfast.testing.driver_conformance import DriverConformance, wait_until

TOY = (sys.executable, str(Path(__file__).parent / "toy_agent.py"))
TOY_PROCESSES = 5


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[LocalDriver]:
    """A project of its own, whose agents are toys; nothing of it is left afterwards."""
    local = LocalDriver(tmp_path, agent=TOY)
    yield local
    for machine in local.machines():
        local.retire(machine.name)
    for folder in tmp_path.glob("machines/m*/"):
        processes.kill_all(folder)


@pytest.mark.e2e
class TestLocalDriver(DriverConformance):
    """The contract."""

    def ready(self, driver: Driver, name: str) -> bool:
        assert isinstance(driver, LocalDriver)
        folder = machine_dir(driver.home, name)
        return processes.find_agent(folder) is not None and len(processes.find_all(folder)) == TOY_PROCESSES

    def processes(self, driver: Driver, name: str) -> int:
        assert isinstance(driver, LocalDriver)
        return len(processes.find_all(machine_dir(driver.home, name)))

    def folder(self, driver: Driver, name: str) -> Path:
        assert isinstance(driver, LocalDriver)
        return machine_dir(driver.home, name)

    def crash(self, driver: Driver, name: str) -> None:
        assert isinstance(driver, LocalDriver)
        processes.kill_all(machine_dir(driver.home, name))
        subprocess.run(["rm", "-rf", str(machine_dir(driver.home, name))], check=True)


@pytest.mark.e2e
def test_orphans_of_a_dead_agent_are_found_and_killed(driver: LocalDriver) -> None:
    """With the agent gone its children, reparented to init, are still known by their environment."""
    [name] = driver.provision(1)
    folder = machine_dir(driver.home, name)
    wait_until(lambda: processes.find_agent(folder) is not None)
    wait_until(lambda: len(processes.find_all(folder)) == TOY_PROCESSES)
    agent = processes.find_agent(folder)
    assert agent is not None
    agent.kill()
    wait_until(lambda: not agent.is_running() or agent.status() == psutil.STATUS_ZOMBIE)
    assert len(processes.find_all(folder)) == TOY_PROCESSES - 1
    driver.evict(name, Scope.CLUSTER, "agent gone")
    assert processes.find_all(folder) == []


@pytest.mark.e2e
def test_of_several_evictions_the_widest_scope_counts(driver: LocalDriver) -> None:
    """A machine that one job left, and that is found broken later, is out for all; not the other way round."""
    [name] = driver.provision(1)
    driver.evict(name, Scope.JOB, "slow")
    first = driver.evicted(name)
    driver.evict(name, Scope.CLUSTER, "broken")
    wider = driver.evicted(name)
    driver.evict(name, Scope.JOB, "slow again")
    assert first is not None
    assert wider is not None
    assert (wider.scope, wider.reason, wider.at) == (Scope.CLUSTER, "broken", first.at)
    assert driver.evicted(name) == wider


@pytest.mark.e2e
def test_evict_wipes_memory_and_release_wipes_disk(driver: LocalDriver) -> None:
    """Nothing that lay on an evicted machine can be used after it comes back."""
    [name] = driver.provision(1)
    (shm_dir(driver.home, name) / "own").mkdir()
    folder = machine_dir(driver.home, name)
    wait_until((folder / "agent.json").exists)
    (folder / "faults").mkdir()
    driver.evict(name, Scope.CLUSTER, "test")
    assert not shm_dir(driver.home, name).exists()
    assert json.loads((folder / "evicted.json").read_text())["reason"] == "test"
    driver.release(name)
    assert not (folder / "faults").exists()
    assert not (folder / "evicted.json").exists()
    assert shm_dir(driver.home, name).is_dir()


@pytest.mark.e2e
def test_agent_sees_its_machine_and_not_the_playbook_around_it(
    driver: LocalDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's environment carries the machine's folder and none of the flow run's variables."""
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "x")
    [name] = driver.provision(1)
    folder = machine_dir(driver.home, name)
    wait_until(lambda: processes.find_agent(folder) is not None)
    agent = processes.find_agent(folder)
    assert agent is not None
    environment = agent.environ()
    assert environment[ENV_MACHINE_DIR] == str(folder)
    assert not [key for key in environment if key.startswith("PREFECT")]


def test_agent_json_of_another_process_names_no_agent(tmp_path: Path) -> None:
    """A pid that belongs to another process since is not taken for the agent."""
    card = {"pid": psutil.Process().pid, "create_time": psutil.Process().create_time() - 100}
    (tmp_path / "agent.json").write_text(json.dumps(card))
    assert processes.find_agent(tmp_path) is None


@pytest.mark.e2e
def test_session_that_took_the_number_of_a_dead_agent_is_left_alone(tmp_path: Path) -> None:
    """Its members are other programs', as none of them carries the machine's mark."""
    innocent = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert innocent.stdout
    member = psutil.Process(int(innocent.stdout.readline()))
    innocent.wait()
    innocent.stdout.close()
    (tmp_path / "agent.json").write_text(json.dumps({"pid": innocent.pid, "create_time": time.time()}))
    try:
        assert processes.find_all(tmp_path) == []
        assert processes.kill_all(tmp_path) == 0
        assert member.is_running()
    finally:
        member.kill()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "create_time": 0}'])
def test_damaged_agent_json_names_no_agent(tmp_path: Path, text: str) -> None:
    """A torn file is no agent, not an error."""
    (tmp_path / "agent.json").write_text(text)
    assert processes.find_agent(tmp_path) is None


def test_two_provisions_at_once_get_different_names(tmp_path: Path) -> None:
    """The roster is changed by one at a time."""
    names: list[str] = []
    threads = [threading.Thread(target=lambda: names.extend(RosterFile(tmp_path).add(3))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(names)) == 24
    assert set(RosterFile(tmp_path).read().names) == set(names)


def test_folder_left_by_others_keeps_its_name(tmp_path: Path) -> None:
    """A folder without roster entry is not taken over."""
    (tmp_path / "machines" / "m4").mkdir(parents=True)
    assert RosterFile(tmp_path).add(1) == ["m5"]


def test_release_of_a_retired_machine_is_refused(tmp_path: Path) -> None:
    """A name that was retired does not come back."""
    RosterFile(tmp_path).add(1)
    driver = LocalDriver(tmp_path, agent=TOY)
    driver.retire("m0")
    with pytest.raises(UnknownError, match="retired"):
        driver.release("m0")


@pytest.mark.parametrize(
    ("out", "text"),
    [
        ("evicted.json", '{"scope": "cluster", "reason": "broken", "at": 1.0}'),
        ("agent.json", '{"pid": 1, "create_time": 0}'),
    ],
)
def test_what_was_restarted_is_not_released_for_what_it_was(tmp_path: Path, out: str, text: str) -> None:
    """Evicted again, or with an agent that died: the release may be meant for an earlier eviction."""
    RosterFile(tmp_path).add(1)
    folder = machine_dir(tmp_path, "m0")
    folder.mkdir(parents=True)
    (folder / "unit").write_text("u2")
    (folder / out).write_text(text)
    with pytest.raises(ReplacedUnitError, match="m0"):
        LocalDriver(tmp_path, agent=TOY).release("m0", "life@u1")
    assert (folder / out).exists()


def test_release_that_was_killed_before_the_agent_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote the new unit and started nothing: the same release again starts it."""
    RosterFile(tmp_path).add(1)
    folder = machine_dir(tmp_path, "m0")
    folder.mkdir(parents=True)
    (folder / "unit").write_text("u2")
    booted: list[str] = []
    monkeypatch.setattr(LocalDriver, "_boot", lambda _, name: booted.append(name))
    LocalDriver(tmp_path, agent=TOY).release("m0", "life@u1")
    assert booted == ["m0"]


@pytest.mark.e2e
def test_only_what_is_out_of_service_is_restarted(driver: LocalDriver) -> None:
    """A machine that serves is left alone, and so is one of another life."""
    [name] = driver.provision(1)
    wait_until(lambda: processes.find_agent(machine_dir(driver.home, name)) is not None)
    with pytest.raises(RefusedError, match="in service"):
        driver.reboot(name, "x", "", 60)
    driver.evict(name, Scope.CLUSTER, "broken")
    with pytest.raises(ReplacedUnitError):
        driver.reboot(name, "x", "a@another", 60)
    assert "nothing of it runs" in driver.reboot(name, "x", "", 60)
    assert driver.evicted(name) is not None


def test_agent_command_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `setsid` on the path the machine does not start, the message names it, and nothing is left."""
    monkeypatch.setenv("PATH", str(tmp_path))
    driver = LocalDriver(tmp_path, agent=TOY)
    with pytest.raises(UnavailableError, match="m0"):
        driver.provision(1)
    assert driver.machines() == []
    assert not machine_dir(tmp_path, "m0").exists()
    assert not shm_dir(tmp_path, "m0").exists()


def test_negative_number_of_machines_is_refused(tmp_path: Path) -> None:
    """The message names value and expectation."""
    with pytest.raises(SettingsError, match="-1"):
        LocalDriver(tmp_path, agent=TOY).provision(-1)


def test_a_group_of_machines_is_refused(tmp_path: Path) -> None:
    """One host has one kind of machine; the message shows where the group comes from."""
    with pytest.raises(SettingsError, match=r"group = 'h100'.*spare_pool.groups"):
        LocalDriver(tmp_path, agent=TOY).provision(1, "h100")


def test_a_folder_without_machines_has_no_processes(tmp_path: Path) -> None:
    """Whatever else runs on the host."""
    assert processes.find_all(tmp_path) == []


def test_settings_name_the_driver(tmp_path: Path) -> None:
    """The embedded default is the local driver of the project's home."""
    driver = from_settings(Settings(home=tmp_path))
    assert isinstance(driver, LocalDriver)
    assert driver.home == tmp_path
