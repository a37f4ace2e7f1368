"""Xid and SXid lines: parsing, alerts, findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.agent.inspection.base import Limits
from holdfast.agent.inspection.kernel_log import KernelLogDetector, kernel_log_path, parse
from holdfast.inject.xid_79 import LINE
from holdfast.models.alert import AlertKind
from holdfast.paths import machine_dir
from holdfast.settings import Settings

XID_31 = (
    "Nov 21 09:49:01 host kernel: [  123.4] NVRM: Xid (PCI:0000:3B:00): 31, pid=4711, name=python3, "
    "Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS"
)


@pytest.mark.parametrize(
    ("line", "xid", "pci"),
    [
        (LINE, 79, "0000:3b:00"),
        (f"[12345.678901] {LINE}", 79, "0000:3b:00"),
        (XID_31, 31, "0000:3b:00"),
        ("NVRM: Xid (PCI:0000:af:00): 79, GPU has fallen off the bus.", 79, "0000:af:00"),
        ("NVRM: Xid (0000:03:00): 48, An uncorrectable double bit error", 48, "0000:03:00"),
        (
            "6,1234,999,-;NVRM: Xid (PCI:0001:00:00.0): 94, pid='<unknown>', name=<unknown>",
            94,
            "0001:00:00.0",
        ),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32", 12028, "0000:c1:00.0"),
    ],
)
def test_forms_of_xid_lines_are_understood(line: str, xid: int, pci: str) -> None:
    """All forms that drivers write yield code and device."""
    found = parse(line)
    assert found is not None
    assert (found.xid, found.pci) == (xid, pci)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "Xid without device: 79",
        "NVRM: Xid (PCI:0000:3b:00): x",
    ],
)
def test_other_lines_are_no_xid(line: str) -> None:
    """Nothing is read into a line that reports no Xid."""
    assert parse(line) is None


def test_process_is_read_where_the_driver_knows_it() -> None:
    """Pid and name are evidence; '<unknown>' is none."""
    known, unknown = parse(XID_31), parse(LINE)
    assert known is not None
    assert unknown is not None
    assert (known.pid, known.process) == (4711, "python3")
    assert (unknown.pid, unknown.process) == (None, "")


def test_only_fatal_switch_errors_lose_the_switch() -> None:
    """The driver says which are; their numbers are of another catalogue."""
    fatal = parse("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    harmless = parse("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 79, Non-fatal, Link 30")
    assert fatal is not None
    assert harmless is not None
    assert fatal.lost
    assert not harmless.lost


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "kernel.log"


def write(log: Path, *lines: str) -> None:
    with log.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def test_xid_line_makes_an_alert_with_evidence(log: Path) -> None:
    """The alert names machine, code, device and line."""
    detector = KernelLogDetector("m0", log, Limits())
    write(log, "noise", LINE)
    [alert] = detector.poll()
    assert alert.kind is AlertKind.XID
    assert alert.machine == "m0"
    assert alert.evidence["xid"] == 79
    assert alert.evidence["pci"] == "0000:3b:00"
    assert alert.evidence["line"] == LINE
    assert detector.poll() == []


def test_switch_error_is_not_taken_for_an_xid(log: Path) -> None:
    """Number 79 of a switch means something else; the alert is a host fault without an Xid."""
    detector = KernelLogDetector("m0", log, Limits())
    write(log, "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 79, Non-fatal, Link 30")
    [alert] = detector.poll()
    assert alert.kind is AlertKind.HOST_FAULT
    assert alert.evidence["check"] == "nvswitch_error"
    assert "xid" not in alert.evidence
    assert detector.inspect()[0].ok


def test_storm_of_one_xid_is_one_alert(log: Path) -> None:
    """A driver may write thousands of lines a second."""
    detector = KernelLogDetector("m0", log, Limits())
    write(log, *[LINE] * 1000, XID_31)
    assert [alert.evidence["xid"] for alert in detector.poll()] == [79, 31]


def test_inspection_finds_a_lost_gpu_that_was_not_polled_yet(log: Path) -> None:
    """A lost GPU is sure, and the alert is not lost to the inspection."""
    detector = KernelLogDetector("m0", log, Limits())
    write(log, LINE)
    [finding] = detector.inspect()
    assert not finding.ok
    assert finding.sure
    assert len(detector.poll()) == 1
    assert not detector.inspect()[0].ok


def test_xid_of_the_application_is_no_machine_fault(log: Path) -> None:
    """Code 31 comes from user code as often as not."""
    detector = KernelLogDetector("m0", log, Limits())
    write(log, XID_31)
    [finding] = detector.inspect()
    assert finding.ok
    assert "31" in finding.detail


def test_old_xids_are_not_found_again(log: Path) -> None:
    """What is older than the window has had its incident."""
    detector = KernelLogDetector("m0", log, Limits(recent_s=1e-9))
    write(log, LINE)
    detector.poll()
    assert detector.inspect()[0].ok


def test_log_is_the_machines_own_unless_set(tmp_path: Path) -> None:
    """On real machines the setting names the host's log."""
    assert kernel_log_path(tmp_path, "m0", Settings()) == machine_dir(tmp_path, "m0") / "kernel.log"
    assert kernel_log_path(tmp_path, "m0", Settings(kernel_log="/var/log/kern.log")) == Path(
        "/var/log/kern.log"
    )
