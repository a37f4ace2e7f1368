"""Requirements on every driver, as pytest tests: a driver's test module subclasses :class:`DriverConformance`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.drivers import processes
from holdfast.drivers.base import Driver, Supplied
from holdfast.errors import ReplacedUnitError, UnknownError
from holdfast.models import incarnation
from holdfast.models.incarnation import unit_of
from holdfast.models.machine import Scope


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 120.0, what: str = "") -> None:
    """Poll ``condition`` until it holds; fail after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what or condition}"
        time.sleep(0.01)


def supplied(driver: Driver, name: str) -> Supplied | None:
    """Return the driver's entry for one machine."""
    return next((machine for machine in driver.machines() if machine.name == name), None)


class DriverConformance:
    """Subclasses provide the fixture ``driver`` and the four hooks below."""

    names_come_back = False
    """Machines are named after hosts: one that was retired may be given again, as a new incarnation."""

    def ready(self, driver: Driver, name: str) -> bool:
        """Return whether the machine's agent is up."""
        raise NotImplementedError

    def processes(self, driver: Driver, name: str) -> int:
        """Return the number of the machine's running processes."""
        raise NotImplementedError

    def folder(self, driver: Driver, name: str) -> Path:
        """Return the machine's folder, which its agent was given."""
        raise NotImplementedError

    def crash(self, driver: Driver, name: str) -> None:
        """Make the machine die without a call of the driver."""
        raise NotImplementedError

    def provision_one(self, driver: Driver) -> str:
        """Provision one machine, and wait until it is up."""
        [name] = driver.provision(1)
        wait_until(lambda: self.ready(driver, name), what=f"{name} up")
        return name

    def test_driver_without_machines_lists_none(self, driver: Driver) -> None:
        """A fresh project has no machines."""
        assert driver.machines() == []

    def test_provision_starts_as_many_machines_as_asked(self, driver: Driver) -> None:
        """Names are distinct, listed and alive."""
        names = driver.provision(3)
        assert len(set(names)) == 3
        wait_until(lambda: all(self.ready(driver, name) for name in names), what="all up")
        assert {machine.name for machine in driver.machines() if machine.alive} == set(names)

    def test_provision_of_none_changes_nothing(self, driver: Driver) -> None:
        """Zero is a valid answer of the pool policy."""
        assert driver.provision(0) == []
        assert driver.machines() == []

    def test_evicted_machine_runs_nothing_and_stays_listed(self, driver: Driver) -> None:
        """After evict returns no process of the machine runs, orphans included; others live on."""
        name, other = self.provision_one(driver), self.provision_one(driver)
        assert self.processes(driver, name) > 1, "control: there was something to kill"
        before = self.processes(driver, other)
        driver.evict(name, Scope.CLUSTER, "test")
        assert self.processes(driver, name) == 0
        assert self.processes(driver, other) == before
        machine = supplied(driver, name)
        assert machine is not None
        assert not machine.alive
        assert "test" in machine.detail

    def test_evict_may_be_repeated(self, driver: Driver) -> None:
        """A playbook that starts again evicts again."""
        name = self.provision_one(driver)
        driver.evict(name, Scope.JOB, "first")
        driver.evict(name, Scope.JOB, "second")
        machine = supplied(driver, name)
        assert machine is not None
        assert "first" in machine.detail

    def test_dead_machine_is_listed_as_dead_and_can_be_evicted(self, driver: Driver) -> None:
        """A machine that died by itself is not forgotten."""
        name = self.provision_one(driver)
        self.crash(driver, name)
        wait_until(lambda: (found := supplied(driver, name)) is not None and not found.alive)
        driver.evict(name, Scope.CLUSTER, "gone")
        assert self.processes(driver, name) == 0

    def test_name_of_a_dead_machine_is_not_given_again(self, driver: Driver) -> None:
        """A new machine is never mistaken for an old one."""
        dead = self.provision_one(driver)
        self.crash(driver, dead)
        wait_until(lambda: (found := supplied(driver, dead)) is not None and not found.alive)
        retired = self.provision_one(driver)
        driver.retire(retired)
        kept = {dead} if self.names_come_back else {dead, retired}
        assert not kept & set(driver.provision(2))

    def test_released_machine_starts_again(self, driver: Driver) -> None:
        """After release the machine is up under its old name."""
        name = self.provision_one(driver)
        driver.evict(name, Scope.CLUSTER, "test")
        driver.release(name)
        wait_until(lambda: self.ready(driver, name), what="up again")
        machine = supplied(driver, name)
        assert machine is not None
        assert machine.alive

    def test_what_was_started_again_is_not_evicted_for_what_it_was(self, driver: Driver) -> None:
        """The caller may act on an old decision; another life of the same unit may still be evicted."""
        name = self.provision_one(driver)
        former = self.incarnation(driver, name)
        driver.evict(name, Scope.CLUSTER, "test", former)
        driver.evict(name, Scope.CLUSTER, "again", former)
        driver.release(name)
        wait_until(lambda: self.ready(driver, name), what="up again")
        with pytest.raises(ReplacedUnitError, match=name):
            driver.evict(name, Scope.CLUSTER, "too late", former)
        machine = supplied(driver, name)
        assert machine is not None
        assert machine.alive
        assert self.ready(driver, name)
        unit = unit_of(self.incarnation(driver, name))
        driver.release(name, former)
        assert self.ready(driver, name), "a repeated release leaves alone what the first one started"
        driver.evict(name, Scope.CLUSTER, "test", f"another@{unit}")
        assert self.processes(driver, name) == 0
        with pytest.raises(ReplacedUnitError, match=name):
            driver.release(name, former)
        machine = supplied(driver, name)
        assert machine is not None
        assert not machine.alive, "out of service for a fault of its own"

    def test_what_was_started_again_is_not_retired_for_what_it_was(self, driver: Driver) -> None:
        """Nor given back: it may train by now."""
        name = self.provision_one(driver)
        former = self.incarnation(driver, name)
        driver.evict(name, Scope.CLUSTER, "test", former)
        driver.release(name)
        wait_until(lambda: self.ready(driver, name), what="up again")
        with pytest.raises(ReplacedUnitError, match=name):
            driver.retire(name, former)
        machine = supplied(driver, name)
        assert machine is not None
        assert machine.alive
        driver.retire(name, self.incarnation(driver, name))
        assert supplied(driver, name) is None

    def incarnation(self, driver: Driver, name: str) -> str:
        """Return the incarnation that an agent would make from its real environment."""
        agent = processes.find_agent(self.folder(driver, name))
        assert agent is not None
        found = incarnation.fresh(agent.environ())
        assert unit_of(found)
        return found

    def test_release_of_a_running_machine_leaves_it_alone(self, driver: Driver) -> None:
        """A repeated release does not restart what the first one started."""
        name = self.provision_one(driver)
        before = supplied(driver, name)
        driver.release(name)
        assert supplied(driver, name) == before

    def test_retired_machine_is_gone(self, driver: Driver) -> None:
        """Retire kills and forgets; it may be repeated."""
        name = self.provision_one(driver)
        driver.retire(name)
        driver.retire(name)
        assert supplied(driver, name) is None
        assert self.processes(driver, name) == 0

    @pytest.mark.parametrize("name", ["m99", "nonsense", "../m0"])
    def test_unknown_machine_is_refused_by_name(self, driver: Driver, name: str) -> None:
        """The message names what was asked for and what there is."""
        with pytest.raises(UnknownError, match=name):
            driver.evict(name, Scope.JOB, "test")
        with pytest.raises(UnknownError, match=name):
            driver.release(name)
        with pytest.raises(UnknownError, match=name):
            driver.retire(name)
