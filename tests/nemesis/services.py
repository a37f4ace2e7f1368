"""Services of one process: clocks, driver and store of the simulated site."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.clock import Clock
from holdfast.drivers.base import Supplied, require_unit
from holdfast.errors import UnknownError
from holdfast.models.machine import Scope
from holdfast.operations.context import Context
from holdfast.storage.ledger import Ledger
from tests.nemesis.network import Client
from tests.nemesis.scheduler import Process

if TYPE_CHECKING:
    from tests.nemesis.site import Site


class HostClock(Clock):
    """The clocks of a process's host."""

    def __init__(self, site: Site, host: str) -> None:
        self._site, self._host = site, host

    def now(self) -> float:
        """The wall clock, which a fault may have set."""
        return self._site.wall(self._host)

    def monotonic(self) -> float:
        """The clock that no fault sets."""
        return self._site.scheduler.now

    async def sleep(self, seconds: float) -> None:
        """In virtual time."""
        await asyncio.sleep(seconds)


class Services(Context):
    """The context that steps use in one process."""

    def __init__(self, site: Site, process: Process, ledger: Ledger) -> None:
        super().__init__(site.settings, HostClock(site, process.host), ledger)
        self.__dict__ |= {"policy": site.policy, "driver": Driver(site, process), "secret": site.secret}
        self.__dict__["store"] = Store()
        self._client = Client(site.network, process)

    @property
    def http(self) -> Any:
        """The process's way out."""
        return self._client


class Store:
    """An object store without objects."""

    bucket = "holdfast"

    def __getattr__(self, name: str) -> Callable[..., list[str]]:
        return lambda *_args, **_named: []

    def exists(self, key: str) -> bool:
        """Nothing does."""
        return False


class Driver:
    """The engine that supplies the machines, as one process asks it."""

    name = "simulated"

    def __init__(self, site: Site, process: Process) -> None:
        self._site, self._process = site, process

    def machines(self) -> list[Supplied]:
        """As the engine sees them."""
        self._ask()
        return [
            Supplied(name=host.name, alive=host.up and not host.forsaken)
            for host in self._site.hosts.values()
            if host.units
        ]

    def evict(self, machine: str, scope: Scope, reason: str, incarnation: str = "") -> None:
        """Power off, or out of the engine's books where it cannot be reached."""
        self._ask()
        host = self._site.hosts.get(machine)
        if host is None:
            raise UnknownError(f"no machine {machine}")
        self._site.evicting(self._process, host, incarnation, reason)
        require_unit(machine, incarnation, host.unit)
        self._site.evicted(host, incarnation)
        if self._site.network.is_open("engine", machine):
            host.die("evicted")
        else:
            host.forsaken = True
        self._ask()

    def provision(self, n: int, group: str = "") -> list[str]:
        """New machines."""
        self._ask()
        names = [self._site.add_machine(after_s=1.5) for _ in range(n)]
        self._site.note("provision", machines=",".join(names))
        return names

    def withdraw(self) -> None:
        """There is nothing to take back."""

    def release(self, machine: str, incarnation: str = "") -> None:
        """It starts again."""
        self._ask()
        require_unit(machine, incarnation, self._site.hosts[machine].unit)
        self._site.hosts[machine].boot(1.0)

    def retire(self, machine: str, incarnation: str = "") -> None:
        """Give it back."""
        self._ask()
        self._site.hosts[machine].die("retired")

    def _ask(self) -> None:
        self._site.gate(self._process)
        self._site.scheduler.block(0.02 + 0.1 * self._site.scheduler.random.random())
