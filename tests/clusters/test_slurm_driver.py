"""The Slurm driver against the driver contract, on a real cluster."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import holdfast
from holdfast.drivers import processes
from holdfast.drivers.base import Driver
from holdfast.drivers.slurm import SlurmDriver
from holdfast.drivers.slurm.commands import CommandAnswer, run_here
from holdfast.drivers.slurm_settings import SlurmSettings
from holdfast.errors import RefusedError, UnavailableError, UnknownError
from holdfast.models.machine import Scope
from holdfast.paths import machine_dir
from holdfast.settings import Settings
from holdfast.testing.driver_conformance import DriverConformance, supplied, wait_until
from tests.clusters.slurm import Cluster

pytestmark = pytest.mark.e2e

TOY = (sys.executable, str(Path(__file__).parents[1] / "drivers" / "toy_agent.py"))
TOY_PROCESSES = 5


@pytest.fixture
def driver(slurm_cluster: Cluster, tmp_path: Path) -> Iterator[SlurmDriver]:
    """A site of its own on the cluster, whose agents are toys; all nodes are idle again afterwards."""
    # What is asked for is there: a busy host may take long, and where the limit is to come a test has its own.
    # Longer than the cluster's KillWait, for which srun may wait where its step is interrupted in its start.
    own = SlurmSettings(kill_s=60, start_s=120)
    made = SlurmDriver(Settings(home=tmp_path), own, agent=TOY, env=slurm_cluster.env)
    yield made
    made.withdraw()
    retire_all(made)
    for folder in tmp_path.glob("machines/*/"):
        assert processes.kill_all(folder) == 0
    rest(slurm_cluster)


def retire_all(driver: SlurmDriver) -> None:
    """As `holdfast down`."""
    with ThreadPoolExecutor(6) as beside:
        list(beside.map(driver.retire, [machine.name for machine in driver.machines()]))


def rest(cluster: Cluster) -> None:
    """All nodes up and idle, whatever a test did to them."""
    for name, state in cluster.states().items():
        if state.startswith(("drain", "down")):
            cluster.update(name, "state=resume")
    wait_until(lambda: set(cluster.states().values()) == {"idle"}, what=f"all idle: {cluster.states()}")


class TestSlurmDriver(DriverConformance):
    """The contract."""

    names_come_back = True

    def ready(self, driver: Driver, name: str) -> bool:
        assert isinstance(driver, SlurmDriver)
        folder = machine_dir(driver.home, name)
        return processes.find_agent(folder) is not None and len(processes.find_all(folder)) >= TOY_PROCESSES

    def processes(self, driver: Driver, name: str) -> int:
        assert isinstance(driver, SlurmDriver)
        return running(driver, name)

    def folder(self, driver: Driver, name: str) -> Path:
        assert isinstance(driver, SlurmDriver)
        return machine_dir(driver.home, name)

    def crash(self, driver: Driver, name: str) -> None:
        assert isinstance(driver, SlurmDriver)
        processes.kill_all(machine_dir(driver.home, name))


def up(driver: SlurmDriver, *names: str) -> None:
    """Wait until the agents of ``names`` run."""
    for name in names:
        wait_until(lambda: agent(driver, name) is not None, what=f"{name} up", timeout_s=180)  # noqa: B023


def hasty(driver: SlurmDriver, cluster: Cluster) -> SlurmDriver:
    """The same site, without patience for queued jobs."""
    return SlurmDriver(
        Settings(home=driver.home), SlurmSettings(start_s=0.5, kill_s=30), agent=TOY, env=cluster.env
    )


def agent(driver: SlurmDriver, name: str) -> int | None:
    """Process of the machine's agent."""
    found = processes.find_agent(machine_dir(driver.home, name))
    return found.pid if found else None


def test_eviction_drains_with_the_incident_as_reason(driver: SlurmDriver, slurm_cluster: Cluster) -> None:
    """Operators see in Slurm why; a machine that is at fault for one job only stays with the others."""
    names = driver.provision(2)
    up(driver, *names)
    driver.evict(names[0], Scope.CLUSTER, "gpt-1: GPU lost")
    driver.evict(names[1], Scope.JOB, "gpt-2: hang")
    assert slurm_cluster.reason(names[0]) == "holdfast: gpt-1: GPU lost"
    assert slurm_cluster.states()[names[0]].startswith("drain")
    wait_until(lambda: slurm_cluster.states()[names[1]] == "idle", what="the other node is idle")
    # This site does not get it again: one of five waits.
    assert set(driver.provision(4)) == set(slurm_cluster.nodes) - set(names)
    assert hasty(driver, slurm_cluster).provision(1) == []


def test_dead_node_is_set_down_before_slurm_notices(driver: SlurmDriver, slurm_cluster: Cluster) -> None:
    """Its eviction does not wait for SlurmdTimeout. Repaired, it comes back under its name."""
    [name] = driver.provision(1)
    up(driver, name)
    slurm_cluster.kill_node(name)
    assert "DOWN" not in slurm_cluster.flags(name), "control: Slurm does not know"
    driver.evict(name, Scope.CLUSTER, "gpt-1: agent gone")
    assert {"DOWN", "DRAIN"} <= slurm_cluster.flags(name)
    seen = supplied(driver, name)
    assert seen is not None
    assert not seen.alive

    slurm_cluster.start_node(name)
    driver.release(name)
    up(driver, name)
    seen = supplied(driver, name)
    assert seen is not None
    assert seen.alive
    assert not {"DOWN", "DRAIN"} & slurm_cluster.flags(name)


def test_node_that_slurm_lost_is_listed_as_dead(driver: SlurmDriver, slurm_cluster: Cluster) -> None:
    """An operator sets it down; its allocation ends, without a notice to the driver."""
    [name] = driver.provision(1)
    up(driver, name)
    slurm_cluster.update(name, "state=down", "reason=bad DIMM")
    wait_until(lambda: (seen := supplied(driver, name)) is not None and not seen.alive, what="dead")
    driver.evict(name, Scope.CLUSTER, "gpt-1: agent gone")
    # Their word stands, and they must lift it.
    assert slurm_cluster.reason(name) == "bad DIMM"
    # Slurm killed the batch script with the rest; without cgroups it missed the orphan, until the next start's sweep.
    processes.kill_all(machine_dir(driver.home, name))


def test_drain_by_an_operator_is_not_lifted(driver: SlurmDriver, slurm_cluster: Cluster) -> None:
    """The message names its owner; once they lifted it the machine comes back."""
    [name] = driver.provision(1)
    up(driver, name)
    slurm_cluster.update(name, "state=drain", "reason=bad DIMM")
    driver.evict(name, Scope.CLUSTER, "gpt-1: GPU lost")
    with pytest.raises(RefusedError, match="bad DIMM"):
        driver.release(name)
    slurm_cluster.update(name, "state=resume")
    driver.release(name)
    up(driver, name)


@pytest.mark.thorough
def test_queued_request_takes_the_next_free_node(driver: SlurmDriver, slurm_cluster: Cluster) -> None:
    """The seventh machine of six nodes waits; a node that is given back is a new machine under the old name."""
    names = driver.provision(len(slurm_cluster.nodes))
    up(driver, *names)
    quick = hasty(driver, slurm_cluster)
    assert quick.provision(1) == []
    old, left = agent(driver, names[2]), machine_dir(driver.home, names[2]) / "left.txt"
    left.write_text("of the former machine")
    driver.retire(names[2])
    wait_until(
        lambda: supplied(driver, names[2]) is not None and agent(driver, names[2]) not in (None, old),
        what="the node is a machine again",
        timeout_s=180,
    )
    assert not left.exists()


@pytest.mark.thorough
def test_down_withdraws_what_waits_in_the_queue(driver: SlurmDriver, slurm_cluster: Cluster) -> None:
    """Nothing joins a site that is down."""
    quick = hasty(driver, slurm_cluster)
    quick.provision(len(slurm_cluster.nodes) + 2)
    driver.withdraw()
    assert "PENDING" not in slurm_cluster.ask("squeue", "-h", "-o", "%T")


@pytest.mark.thorough
def test_machines_survive_slurmctld(driver: SlurmDriver, slurm_cluster: Cluster) -> None:
    """It is stopped, and commands block; machines run on, and an eviction under way ends once it is back."""
    names = driver.provision(2)
    up(driver, *names)
    before = [agent(driver, name) for name in names]
    blocked = threading.Event()

    def recorded(command: Sequence[str], *, env: Mapping[str, str], timeout_s: float) -> CommandAnswer:
        answer = run_here(command, env=env, timeout_s=timeout_s)
        if answer.status:
            blocked.set()
        return answer

    patient = SlurmDriver(
        Settings(home=driver.home),
        SlurmSettings(patience_s=120, kill_s=30),
        agent=TOY,
        env=slurm_cluster.env,
        run=recorded,
    )
    slurm_cluster.stop_controller()
    try:
        with ThreadPoolExecutor(1) as beside:
            evicting = beside.submit(patient.evict, names[0], Scope.CLUSTER, "gpt-1: GPU lost")
            assert blocked.wait(60), "control: slurmctld was away"
            assert [agent(driver, name) for name in names] == before
            slurm_cluster.start_controller()
            evicting.result(120)
    except BaseException:
        slurm_cluster.start_controller()
        raise
    assert running(driver, names[0]) == 0
    assert slurm_cluster.reason(names[0]) == "holdfast: gpt-1: GPU lost"
    assert agent(driver, names[1]) == before[1]
    assert [machine.name for machine in patient.machines() if machine.alive] == [names[1]]
    up(driver, *patient.provision(1))


def running(driver: SlurmDriver, name: str) -> int:
    """How many processes of the machine run."""
    return len(processes.find_all(machine_dir(driver.home, name)))


@pytest.mark.thorough
def test_node_taken_out_of_slurm_conf_is_lost_and_may_come_back(
    driver: SlurmDriver, slurm_cluster: Cluster
) -> None:
    """Its machine is dead in the inventory, with the reason; the others are as they were."""
    names = driver.provision(len(slurm_cluster.nodes))
    up(driver, *names)
    others = set(slurm_cluster.nodes[:-1])
    slurm_cluster.kill_node(slurm_cluster.nodes[-1])
    try:
        with slurm_cluster.without_the_last_node() as gone:
            seen = {machine.name: machine for machine in driver.machines()}
            assert {name for name, machine in seen.items() if machine.alive} == others
            assert f"Slurm knows no node {gone} any more" in seen[gone].detail
            driver.evict(gone, Scope.CLUSTER, "gpt-1: agent gone")
            with pytest.raises(UnknownError, match="Slurm knows no node of that name"):
                driver.release(gone)
            # The next request must not be refused for naming it in --exclude.
            assert hasty(driver, slurm_cluster).provision(1) == []
            driver.withdraw()
    finally:
        slurm_cluster.start_node(slurm_cluster.nodes[-1])
    wait_until(lambda: slurm_cluster.states()[gone] == "idle", what=f"{gone} is idle")
    driver.release(gone)
    up(driver, gone)
    seen = {machine.name: machine for machine in driver.machines()}
    assert {name for name, machine in seen.items() if machine.alive} == others | {gone}


UNPRIVILEGED = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


@pytest.fixture
def ordinary(slurm_cluster: Cluster) -> Iterator[SlurmDriver]:
    """A site of a user who is no operator of the cluster, in folders that are open to all."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    # The checkout, its environment and even its interpreter may be root's alone.
    python = "/usr/bin/python3"
    if not Path(python).exists():
        pytest.skip(f"no {python}, which every user may run")
    folder = Path(tempfile.mkdtemp(prefix="holdfast-nobody-"))
    (folder / "machines").mkdir()
    folder.chmod(0o777)
    (folder / "machines").chmod(0o777)
    shutil.copytree(Path(holdfast.__file__).parent, folder / "lib" / "holdfast")
    shutil.copytree(Path(psutil.__file__).parent, folder / "lib" / "psutil")
    shutil.copy(TOY[1], folder / "lib")

    def unprivileged(command: Sequence[str], *, env: Mapping[str, str], timeout_s: float) -> CommandAnswer:
        return run_here([*UNPRIVILEGED, *command], env=env, timeout_s=timeout_s)

    own = SlurmSettings(start_s=30, kill_s=10, python=python)
    env = {**slurm_cluster.env, "PYTHONPATH": str(folder / "lib")}
    agent = (python, str(folder / "lib" / "toy_agent.py"))
    made = SlurmDriver(Settings(home=folder), own, agent=agent, env=env, run=unprivileged)
    yield made
    retire_all(made)
    shutil.rmtree(folder, ignore_errors=True)
    rest(slurm_cluster)


def evict_until_done(ordinary: SlurmDriver, name: str) -> None:
    """As a playbook and its next attempts do: ``kill_s`` is shorter here than a busy host may need."""

    def evicted() -> bool:
        with suppress(UnavailableError):
            ordinary.evict(name, Scope.CLUSTER, "gpt-1: agent gone")
            return True
        return False

    wait_until(evicted, what="Slurm says that the job ended", timeout_s=180)


def test_ordinary_user_evicts_without_draining(ordinary: SlurmDriver, slurm_cluster: Cluster) -> None:
    """Nothing of the machine runs, the site does not get the node again, other users may."""
    [name] = ordinary.provision(1)
    up(ordinary, name)
    evict_until_done(ordinary, name)
    assert running(ordinary, name) == 0
    wait_until(lambda: slurm_cluster.states()[name] == "idle", what=f"{name} idle")
    others = ordinary.provision(5)
    assert len(others) == 5
    assert name not in others


@pytest.mark.thorough
def test_ordinary_user_does_not_take_a_silent_node_for_dead(
    ordinary: SlurmDriver, slurm_cluster: Cluster
) -> None:
    """A user who cannot set it down waits until Slurm reports the end of its job: the next attempt asks again."""
    [name] = ordinary.provision(1)
    up(ordinary, name)
    slurm_cluster.kill_daemon(name)
    try:
        with pytest.raises(UnavailableError, match="operator rights"):
            ordinary.evict(name, Scope.CLUSTER, "gpt-1: agent gone")
    finally:
        slurm_cluster.start_node(name)
    evict_until_done(ordinary, name)
    assert running(ordinary, name) == 0
