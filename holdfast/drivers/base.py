"""The driver contract: a driver supplies machines, nothing else. Starting and diagnosing go to agents."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from holdfast.errors import ReplacedUnitError
from holdfast.models.base import Frozen
from holdfast.models.incarnation import why_another
from holdfast.models.location import Location
from holdfast.models.machine import Scope


def require_unit(machine: str, incarnation: str, unit: str) -> None:
    """Check that ``unit``, which runs under the name of ``machine`` now, is that of ``incarnation``.

    Raises:
        ReplacedUnitError: it is another.
    """
    if why := why_another(machine, incarnation, unit):
        raise ReplacedUnitError(why)


def meant(act: Callable[..., None], machine: str, incarnation: str) -> tuple[str, ...]:
    """Return the arguments by which a driver's :meth:`Driver.release` or :meth:`Driver.retire` is called.

    One of another package may be of a release in which they knew machines by name alone.
    """
    return (machine, incarnation) if len(inspect.signature(act).parameters) > 1 else (machine,)


class Supplied(Frozen):
    """A machine as its engine (this host, Slurm, Kubernetes) sees it."""

    name: str
    alive: bool
    detail: str = ""


class Driver(Protocol):
    """Called from playbooks and the CLI, by any process, at any time; every method is safe to repeat."""

    name: str

    def machines(self) -> list[Supplied]:
        """Return all machines that the engine has for us, dead ones included until they are retired."""
        ...

    def evict(self, machine: str, scope: Scope, reason: str, incarnation: str = "") -> None:
        """Take ``machine`` out of service. After it returns none of its processes runs.

        Called after the machine's ranks were fenced. The machine may be dead already.

        Args:
            machine: its name.
            scope: whom the cordon keeps away.
            reason: for people.
            incarnation: the one that is meant. What the engine runs under the machine's name now must be of its unit
                (:mod:`holdfast.models.incarnation`): the caller may act on an old decision. Empty: whatever is there.

        Raises:
            UnknownError: the engine never had such a machine.
            ReplacedUnitError: another unit has its name by now; it is left alone.
        """
        ...

    def provision(self, n: int, group: str = "") -> list[str]:
        """Ask for ``n`` new machines; returns their names. Their agents register when they are ready.

        ``group`` names the kind of machine (``spare_pool.groups`` of the policy file); empty: the engine's usual.

        Raises:
            SettingsError: ``n`` is negative, or the engine has no such group.
        """
        ...

    def withdraw(self) -> None:
        """Take back requests for machines that the engine did not answer yet, when the site goes down."""
        ...

    def release(self, machine: str, incarnation: str = "") -> None:
        """Give an evicted machine back: it restarts and registers with a new incarnation.

        One that is up already is left alone: a release that is repeated finds what the first one started.

        Args:
            machine: its name.
            incarnation: the one that was evicted, as in :meth:`evict`. Empty: whatever is there.

        Raises:
            UnknownError: there is no such machine, or it was retired.
            ReplacedUnitError: another unit had its name since, and was evicted or died: that one was not meant.
        """
        ...

    def retire(self, machine: str, incarnation: str = "") -> None:
        """Give a machine that is not needed back to the engine for good.

        Args:
            machine: its name.
            incarnation: the one that is meant, as in :meth:`evict`: names may come back. Empty: whatever is there.

        Raises:
            UnknownError: the engine never had such a machine.
            ReplacedUnitError: another unit has its name by now; it is left alone.
        """
        ...


@runtime_checkable
class Reboots(Protocol):
    """Drivers that can restart a machine, besides what :class:`Driver` asks of all."""

    def reboot(self, machine: str, reason: str, incarnation: str, wait_s: float) -> str:
        """Restart a machine that was evicted; returns, once it was seen to be up again, what was seen.

        It stays out of service. Safe to repeat.

        Args:
            machine: its name.
            reason: for people.
            incarnation: the one that was evicted (:meth:`Driver.evict`).
            wait_s: the most that it may take.

        Raises:
            UnknownError: the engine never had such a machine.
            ReplacedUnitError: another unit has its name by now; it is left alone.
            RefusedError: the machine is in service, or the engine does not let us.
            UnavailableError: it did not come up in time.
        """
        ...


class Leaving(Frozen):
    """A machine that its engine is to lose, and that still works."""

    name: str
    reason: str
    """As given by the one who drains it."""


@runtime_checkable
class Locates(Protocol):
    """Drivers that know where machines are, besides what :class:`Driver` asks of all."""

    def locations(self) -> dict[str, Location]:
        """Return the failure domains of machines in service, by name; those without any are left out.

        Raises:
            UnavailableError: the engine does not answer.
        """
        ...


@runtime_checkable
class NamesNodes(Protocol):
    """Drivers whose machines are called otherwise than their hosts, besides what :class:`Driver` asks of all."""

    def node_of(self, machine: str) -> str:
        """Return the name of the host that an evicted machine was on; empty: not known.

        Raises:
            UnknownError: the engine never had such a machine.
            UnavailableError: the engine does not answer.
        """
        ...


@runtime_checkable
class Drains(Protocol):
    """Drivers that know which machines others drain, besides what :class:`Driver` asks of all."""

    def leaving(self) -> list[Leaving]:
        """Return machines in service that others than Holdfast drain or are about to take away.

        Raises:
            UnavailableError: the engine does not answer.
        """
        ...
