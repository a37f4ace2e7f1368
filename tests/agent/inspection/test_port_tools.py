"""Ports through ``ethtool`` and ``ibstat`` that print what the real tools printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.agent.inspection.driver_counters import DriverCounters
from holdfast.agent.inspection.ibstat import IbStat, read
from holdfast.agent.inspection.steady import Steady
from holdfast.agent.inspection.tool import Tool
from holdfast.models.alert import Alert, AlertKind
from tests.agent.inspection.kit import LIMITS, HandClock, steady
from tests.agent.inspection.stub_tools import Machine, detector_of, of_local_driver
from tests.agent.inspection.sysfs import FakeSys
from tests.corpus.items import load, real

MINUTE = 60.0


class Watched:
    """A detector over a tool that prints what the test gives it, a minute apart."""

    def __init__(self, folder: Path, tool: str) -> None:
        self.machine, self.clock, self.tool = Machine(folder), HandClock(), tool
        self.sys = FakeSys(self.machine.sys)
        found = Tool(tool, 5.0, str(self.machine.bin))
        made = DriverCounters if tool == "ethtool" else IbStat
        self.detector: Steady = steady(made(self.machine.sys, found, LIMITS.network, self.clock), self.clock)

    def prints(self, text: str, status: int = 0) -> list[Alert]:
        """Let time pass, and poll."""
        self.machine.prints(self.tool, text, status)
        self.clock.now += MINUTE
        return self.detector.poll()


def test_link_errors_that_grow_are_reported_with_their_rate(tmp_path: Path) -> None:
    """A ConnectX-4 with 8,456 CRC errors in a minute: one alert, though two counters grow."""
    watched = Watched(tmp_path, "ethtool")
    watched.sys.ethernet("eth0")
    assert watched.prints(CRC.before) == []
    [alert] = watched.prints(CRC.text)
    assert (alert.kind, alert.evidence["device"], alert.evidence["value"]) == (
        AlertKind.NIC_ERRORS,
        "eth0",
        8456,
    )
    assert watched.prints(CRC.text) == []
    assert set(watched.machine.calls("ethtool")) == {"-S eth0"}


def test_a_port_that_is_down_or_ignored_is_not_asked(tmp_path: Path) -> None:
    """As sysfs and the policy have it."""
    watched = Watched(tmp_path, "ethtool")
    watched.sys.ethernet("eth0", state="down")
    watched.sys.ethernet("docker0")
    watched.sys.infiniband()
    assert watched.prints(real("et-old-crc")) == []
    assert watched.machine.calls("ethtool") == []


# The adapter of a real machine whose port is down, and the same with the port up as its others are.
DOWN = real("ib-disabled-then-polling")
UP = (
    DOWN.replace("State: Down", "State: Active")
    .replace("Polling", "LinkUp")
    .replace("Rate: 40\n", "Rate: 400\n")
)


def test_a_port_that_was_up_is_down(tmp_path: Path) -> None:
    """In ibstat's words."""
    watched = Watched(tmp_path, "ibstat")
    assert watched.prints(UP) == []
    [alert] = watched.prints(DOWN)
    assert (alert.kind, alert.evidence["device"]) == (AlertKind.NIC_DOWN, "mlx5_11/1")
    assert alert.evidence["state"] == "Down (Polling)"


def test_a_port_that_runs_slower_than_it_did_is_reported(tmp_path: Path) -> None:
    """400 Gbit/s before, 40 now."""
    watched = Watched(tmp_path, "ibstat")
    assert watched.prints(UP) == []
    [alert] = watched.prints(UP[::-1].replace("004 :etaR", "04 :etaR", 1)[::-1])
    assert (alert.kind, alert.evidence["value"], alert.evidence["limit"]) == (AlertKind.NIC_ERRORS, 40, 400)


def test_ports_that_sysfs_lists_are_left_to_it(tmp_path: Path) -> None:
    """One fault is one alert."""
    watched = Watched(tmp_path, "ibstat")
    watched.sys.infiniband("mlx5_11")
    assert watched.prints(UP) == []
    assert watched.prints(DOWN) == []


@pytest.mark.parametrize("text", ["", real("ib-no-module"), UP.partition("CA 'mlx5_11'")[0]])
def test_what_ibstat_leaves_out_is_not_gone(tmp_path: Path, text: str) -> None:
    """It ends at the first adapter that it cannot read, and may be ended before: nothing is tested then."""
    watched = Watched(tmp_path, "ibstat")
    assert watched.prints(UP) == []
    assert watched.prints(text, status=255) == []


def test_a_cut_off_port_has_no_state() -> None:
    """And is left out."""
    cut = UP[: UP.index("State: Active", UP.index("mlx5_11"))]
    assert [port.device for port in read(cut)] == ["mlx5_10/1"]


@pytest.mark.parametrize("name", ["driver_counters", "ibstat"])
def test_without_the_tool_nothing_is_tested(tmp_path: Path, name: str) -> None:
    """A machine of the local driver has none, whatever its host has."""
    machine = of_local_driver(tmp_path)
    FakeSys(machine.sys).ethernet()
    detector = detector_of(machine, name)
    assert detector.poll() == []
    assert detector.inspect() == []


CRC = next(each for each in load() if each.id == "et-crc-grows")


@pytest.mark.parametrize(
    ("name", "tool", "printed", "kind"),
    [
        ("ibstat", "ibstat", (UP, DOWN), AlertKind.NIC_DOWN),
        ("driver_counters", "ethtool", (CRC.before, CRC.text), AlertKind.NIC_ERRORS),
    ],
)
def test_the_agents_own_detectors_find_it(
    tmp_path: Path, name: str, tool: str, printed: tuple[str, str], kind: AlertKind
) -> None:
    """As they are made for a machine, from its tools to the alert."""
    machine = of_local_driver(tmp_path)
    FakeSys(machine.sys).ethernet()
    detector = detector_of(machine, name)
    machine.prints(tool, printed[0])
    assert detector.poll() == []
    machine.prints(tool, printed[1])
    assert [alert.kind for alert in detector.poll()] == [kind]
