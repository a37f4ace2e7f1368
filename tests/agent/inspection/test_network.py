"""Network ports, in a sysfs of the test's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast.agent.inspection import ports
from holdfast.agent.inspection.network import Network
from holdfast.models.alert import Alert, AlertKind
from tests.agent.inspection.kit import LIMITS, HandClock, kinds, steady
from tests.agent.inspection.sysfs import FakeSys, write


class Watched:
    """A detector over ports that the test sets."""

    def __init__(self, root: Path) -> None:
        self.sys = FakeSys(root)
        self.clock = HandClock()
        self.sys.ethernet()
        self.sys.infiniband()
        self.detector = steady(Network(root, LIMITS.network, self.clock), self.clock)
        assert self.after() == []

    def after(self, seconds: float = 30.0) -> list[Alert]:
        """Let time pass, and poll."""
        self.clock.now += seconds
        return self.detector.poll()


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "sys")


def test_a_host_without_ports_says_nothing(tmp_path: Path) -> None:
    """As a machine of the local driver, whose host is shared."""
    detector = steady(Network(tmp_path / "none", LIMITS.network, HandClock()), HandClock())
    assert detector.poll() == []
    assert detector.inspect() == []


def test_this_host_can_be_read() -> None:
    """The real /sys, whatever is in it."""
    for port in ports.read(Path("/sys")):
        assert port.device


def test_ports_that_are_up_are_good_findings(watched: Watched) -> None:
    """One each, of both kinds."""
    findings = watched.detector.inspect()
    assert [finding.detail for finding in findings] == ["mlx5_0/1 is 4: ACTIVE", "eth0 is up"]
    assert all(finding.ok for finding in findings)


def test_a_port_that_goes_down_is_a_signal_at_every_look(watched: Watched) -> None:
    """Its repetition is what evicts (two within five minutes), so each look counts."""
    watched.sys.infiniband(state="1: DOWN", link_downed=1)
    first, second = watched.after(), watched.after()
    assert kinds(first) == kinds(second) == [AlertKind.NIC_DOWN]
    assert first[0].evidence["device"] == "mlx5_0/1"
    assert first[0].fingerprint != second[0].fingerprint
    watched.sys.infiniband(link_downed=1)
    assert watched.after() == []


def test_an_ethernet_port_that_comes_back_is_no_second_fault(watched: Watched) -> None:
    """Down was reported; up again is good news."""
    watched.sys.ethernet(state="down", changes=2)
    assert kinds(watched.after()) == [AlertKind.NIC_DOWN]
    watched.sys.ethernet(changes=3)
    assert watched.after() == []


def test_a_port_that_vanishes_is_down(watched: Watched) -> None:
    """Its driver gave it up."""
    shutil.rmtree(watched.sys.root / "class/infiniband/mlx5_0")
    [alert] = watched.after()
    assert (alert.kind, alert.evidence["state"]) == (AlertKind.NIC_DOWN, "gone")


def test_a_port_that_never_was_up_is_not_cabled(watched: Watched) -> None:
    """Machines have spare ports."""
    watched.sys.ethernet("eth1", state="down")
    watched.sys.infiniband("mlx5_1", state="1: DOWN")
    assert watched.after() == []
    assert watched.after() == []


def test_a_flap_between_two_looks_is_seen(watched: Watched) -> None:
    """By the counters: the state is up at both looks."""
    watched.sys.ethernet(changes=3)
    [alert] = watched.after()
    assert (alert.kind, alert.evidence["device"], alert.evidence["value"]) == (
        AlertKind.NIC_FLAPPING,
        "eth0",
        1,
    )
    watched.sys.infiniband(link_downed=2)
    [alert] = watched.after()
    assert (alert.kind, alert.evidence["value"]) == (AlertKind.NIC_FLAPPING, 2)
    assert watched.after() == []


def test_flaps_before_the_agent_began_do_not_count(tmp_path: Path) -> None:
    """A counter that is high is history."""
    sys = FakeSys(tmp_path)
    sys.ethernet(changes=400)
    sys.infiniband(link_downed=7, symbol_error=10**6)
    detector = steady(Network(tmp_path, LIMITS.network, HandClock()), HandClock())
    assert detector.poll() == []


def test_lost_packets_count_by_their_share(watched: Watched) -> None:
    """Two of a hundred is too much; a few are not, nor are many among few."""
    watched.sys.ethernet(rx_packets=100_000, rx_missed_errors=500)
    assert watched.after() == []
    watched.sys.ethernet(rx_packets=200_000, rx_missed_errors=3000)
    [alert] = watched.after()
    assert alert.kind is AlertKind.PACKET_LOSS
    assert alert.evidence["value"] == pytest.approx(0.0244, abs=1e-3)
    watched.sys.ethernet(rx_packets=200_100, rx_missed_errors=3050)
    assert watched.after() == []
    watched.sys.infiniband(port_rcv_packets=10_000, port_xmit_discards=1000)
    assert kinds(watched.after()) == [AlertKind.PACKET_LOSS]


def test_packets_that_the_host_does_not_speak_are_not_lost(watched: Watched) -> None:
    """Numbers of a management port in ben.the-collective.net's notes on inbound discards."""
    watched.sys.ethernet(rx_packets=0, rx_dropped=0)
    assert watched.after() == []
    watched.sys.ethernet(rx_packets=3664, rx_dropped=163)
    assert watched.after() == []


def test_error_counters_that_grow_fast(watched: Watched) -> None:
    """Per counter; slow growth is everyday."""
    watched.sys.infiniband(symbol_error=10)
    assert watched.after() == []
    watched.sys.infiniband(symbol_error=1000)
    [alert] = watched.after()
    assert (alert.kind, alert.evidence["counter"]) == (AlertKind.NIC_ERRORS, "symbol_error")


def test_a_link_that_runs_slower_than_before(watched: Watched) -> None:
    """Half of its lanes are gone."""
    watched.sys.infiniband(rate="200 Gb/sec (2X NDR)")
    [alert] = watched.after()
    assert (alert.evidence["counter"], alert.evidence["value"], alert.evidence["limit"]) == ("rate", 200, 400)


def test_virtual_ports_are_left_out_unless_named(tmp_path: Path) -> None:
    """Bridges of containers come and go."""
    sys = FakeSys(tmp_path)
    sys.ethernet("eth0")
    sys.ethernet("veth12")
    write(tmp_path / "class/net/bond0/operstate", "up")
    ignored = LIMITS.network.ignored
    assert [port.device for port in ports.read(tmp_path, (), ignored)] == ["eth0"]
    assert [port.device for port in ports.read(tmp_path, ("bond*",), ignored)] == ["bond0"]


def test_a_port_on_usb_is_watched_where_it_is_named(tmp_path: Path) -> None:
    """The one to the machine's BMC goes down when that restarts, and carries no training."""
    sys = FakeSys(tmp_path)
    for name, bus in (("eth0", "pci"), ("usb0", "usb")):
        sys.ethernet(name)
        (tmp_path / "class/net" / name / "device/subsystem").symlink_to(f"../../../../bus/{bus}")
    assert [port.device for port in ports.read(tmp_path)] == ["eth0"]
    assert [port.device for port in ports.read(tmp_path, ("usb*",))] == ["usb0"]


def test_counters_that_are_no_numbers_do_no_harm(watched: Watched) -> None:
    """A driver may answer anything."""
    write(watched.sys.root / "class/net/eth0/statistics/rx_packets", "soon")
    write(watched.sys.root / "class/infiniband/mlx5_0/ports/1/rate", "")
    assert watched.after() == []
