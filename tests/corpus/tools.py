"""Output of the machine's tools, through the detectors that ask them: a stub in a folder of its own prints the item."""

from __future__ import annotations

from pathlib import Path

from holdfast.agent.inspection import raid
from holdfast.agent.inspection.base import MachineCheck
from holdfast.agent.inspection.driver_counters import DriverCounters
from holdfast.agent.inspection.gpu import GpuHealth
from holdfast.agent.inspection.ibstat import IbStat
from holdfast.agent.inspection.raid import Raid
from holdfast.agent.inspection.smart import SmartDisks
from holdfast.agent.inspection.smi import Smi
from holdfast.agent.inspection.steady import Steady
from holdfast.agent.inspection.tool import Tool
from holdfast.models.alert import Alert
from holdfast.policies.classify import mdstat
from tests.agent.inspection.kit import LIMITS, HandClock
from tests.agent.inspection.stub_tools import Machine
from tests.agent.inspection.sysfs import FakeSys
from tests.corpus.items import Item, Kind

MINUTE = 60.0


def read(item: Item, folder: Path) -> tuple[list[Alert], bool]:
    """Return its alerts, and whether any device was tested."""
    if item.kind is Kind.MDADM:
        found = mdstat.detail(item.text)
        return _alerts(_Given(raid.sign(found, in_use=True)) if found else _Given(), HandClock())
    machine, clock = Machine(folder), HandClock()
    check = _check(item.kind, machine, clock)
    if item.before:
        machine.prints(item.kind, item.before)
        check.look()
        clock.now += MINUTE
    machine.prints(item.kind, item.text)
    return _alerts(check, clock)


def _check(kind: Kind, machine: Machine, clock: HandClock) -> MachineCheck:
    tool = Tool(kind.value, 10.0, str(machine.bin))
    if kind is Kind.MDSTAT:
        return Raid(machine.sys, machine.proc, tool)
    if kind is Kind.NVIDIA_SMI:
        return GpuHealth(LIMITS.gpu, Smi(NoNvml(), tool), clock)
    if kind is Kind.ETHTOOL:
        FakeSys(machine.sys).ethernet("eth0")
        return DriverCounters(machine.sys, tool, LIMITS.network, clock)
    if kind is Kind.IBSTAT:
        return IbStat(machine.sys, tool, LIMITS.network, clock)
    return SmartDisks(machine.sys, machine.proc, tool, LIMITS.tools, clock)


class NoNvml:
    """A library that cannot be loaded."""

    def read(self) -> None:
        """No driver to ask."""


class _Given:
    name = "given"

    def __init__(self, *signs: raid.Sign) -> None:
        self._signs = signs

    def look(self) -> list[raid.Sign]:
        return list(self._signs)


def _alerts(check: MachineCheck, clock: HandClock) -> tuple[list[Alert], bool]:
    signs = check.look()
    return Steady("m1", _Given(*signs), 1.0, clock=clock).poll(), bool(signs)
