"""Xid and SXid lines: parsing, alerts, findings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.inspection.kernel_log import KernelLog
from holdfast.agent.inspection.kmsg import Kmsg, text_of
from holdfast.agent.inspection.roots import Roots
from holdfast.agent.inspection.xid_line import parse
from holdfast.inject.xid_79 import LINE
from holdfast.models.alert import AlertKind
from holdfast.paths import machine_dir
from holdfast.settings import Settings
from tests.agent.inspection.kernel_lines import write
from tests.agent.inspection.kit import LIMITS, HandClock

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
            "0001:00:00",
        ),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32", 12028, "0000:c1:00"),
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
    """The driver marks the fatal ones; their numbers are of another catalogue."""
    fatal = parse("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    harmless = parse("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 79, Non-fatal, Link 30")
    assert fatal is not None
    assert harmless is not None
    assert fatal.lost
    assert not harmless.lost


def test_xid_line_makes_an_alert_with_evidence(log: Path) -> None:
    """The alert names machine, code, device and line."""
    detector = KernelLog("m0", log, LIMITS.intervals)
    write(log, "noise", LINE)
    [alert] = detector.poll()
    assert alert.kind is AlertKind.XID
    assert alert.machine == "m0"
    assert alert.evidence["xid"] == 79
    assert alert.evidence["pci"] == "0000:3b:00"
    assert alert.evidence["line"] == LINE
    assert detector.poll() == []


def test_switch_error_is_not_taken_for_an_xid(log: Path) -> None:
    """Number 79 of a switch means something else."""
    detector = KernelLog("m0", log, LIMITS.intervals)
    write(log, "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 79, Non-fatal, Link 30")
    [alert] = detector.poll()
    assert alert.kind is AlertKind.SXID
    assert "xid" not in alert.evidence
    assert (alert.evidence["sxid"], alert.evidence["link"], alert.evidence["fatal"]) == (79, 30, False)
    assert detector.inspect()[0].ok
    write(log, "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    assert [alert.evidence["action"] for alert in detector.poll()] == ["reset_gpu"]


def test_storm_of_one_xid_is_one_alert(log: Path) -> None:
    """A driver may write thousands of lines a second."""
    detector = KernelLog("m0", log, LIMITS.intervals)
    write(log, *[LINE] * 1000, XID_31)
    alerts = detector.poll()
    assert [(alert.evidence["xid"], alert.evidence["count"]) for alert in alerts] == [(79, 1000), (31, 1)]


def test_inspection_finds_a_lost_gpu_that_was_not_polled_yet(log: Path) -> None:
    """A lost GPU is sure, and the alert is not lost to the inspection."""
    detector = KernelLog("m0", log, LIMITS.intervals)
    write(log, LINE)
    [finding] = detector.inspect()
    assert not finding.ok
    assert finding.sure
    assert len(detector.poll()) == 1
    assert not detector.inspect()[0].ok


def test_xid_of_the_application_is_no_machine_fault(log: Path) -> None:
    """Code 31 comes from user code as often as not."""
    detector = KernelLog("m0", log, LIMITS.intervals)
    write(log, XID_31)
    [finding] = detector.inspect()
    assert finding.ok
    assert "31" in finding.detail


def test_old_xids_are_not_found_again(log: Path) -> None:
    """An Xid from before the window has had its incident."""
    clock = HandClock()
    detector = KernelLog("m0", log, LIMITS.intervals, clock)
    write(log, LINE)
    detector.poll()
    clock.now += LIMITS.intervals.recent_s + 1
    assert detector.inspect()[0].ok


@pytest.mark.parametrize(
    ("words", "action", "lost"),
    [
        ("from 0x0 (None) to 0x1 (GPU Reset Required)", "reset_gpu", True),
        ("from 0x0 (None) to 0x2 (Node Reboot Required)", "restart_machine", True),
        ("from 0x0 (None) to 0x2 (OS Reboot)", "restart_machine", True),
        ("from 0x0 (None) to 0x3 (Drain P2P)", "restart_app", False),
        ("from 0x0 (None) to 0x4 (Drain and Reset)", "reset_gpu", True),
        ("from 0x1 (GPU Reset Required) to 0x0 (None)", "ignore", False),
        ("from 0x0 (None) to 0x9 (Something New)", "ignore", False),
    ],
)
def test_xid_154_says_itself_what_to_do(words: str, action: str, lost: bool) -> None:
    """The driver's recovery action changed; back to none is good news."""
    found = parse(f"NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed {words}")
    assert found is not None
    assert (found.action, found.lost) == (action, lost)


def test_each_change_of_the_recovery_action_is_news(log: Path) -> None:
    """Reset, then reboot: two signals of the same code and GPU."""
    detector = KernelLog("m0", log, LIMITS.intervals)
    line = "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed"
    write(log, f"{line} from 0x0 (None) to 0x1 (GPU Reset Required)")
    write(log, f"{line} from 0x1 (GPU Reset Required) to 0x2 (Node Reboot Required)")
    assert [alert.evidence["action"] for alert in detector.poll()] == ["reset_gpu", "restart_machine"]


def test_unknown_codes_are_reported_and_lose_nothing() -> None:
    """A code of a newer driver is one for the vendor."""
    found = parse("NVRM: Xid (PCI:0000:3b:00): 999, something new")
    assert found is not None
    assert (found.lost, found.action) == (False, "contact_support")


def test_instance_of_a_partitioned_gpu_is_evidence() -> None:
    """MIG: the address carries the instance."""
    found = parse("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=2194, name=python3, Contained: SM")
    assert found is not None
    assert (found.pci, found.instance, found.pid) == ("0000:01:00", 5, 2194)


@given(st.binary(max_size=4096))
def test_no_bytes_do_harm(data: bytes) -> None:
    """Whatever stands in the log: no exception, and evidence is bounded and printable."""
    line = data.decode(errors="replace")
    for text in (line, f"NVRM: Xid (PCI:0000:3b:00): 79, {line}", f"Kernel panic - not syncing: {line}"):
        found = parse(text)
        if found is not None:
            assert len(found.line) <= 1000
            assert found.line.isprintable()


def test_hostile_lines_are_data(log: Path) -> None:
    """Escape sequences, markup, shell text, and megabytes without a newline."""
    detector = KernelLog("m0", log, LIMITS.intervals)
    hostile = "\x1b[2J$(touch /tmp/x)`id`<script>|**bold**\u202e"
    write(log, f"NVRM: Xid (PCI:0000:3b:00): 31, name={hostile}, x", "y" * (4 << 20))
    alerts = detector.poll()
    while not alerts or len(detector.poll()):
        alerts = alerts or detector.poll()
    evidence = alerts[0].evidence
    assert evidence["line"].isprintable()
    assert "\\x1b[2J" in evidence["line"]
    write(log, LINE)
    later = [alert for _ in range(8) for alert in detector.poll()]
    assert [alert.evidence["xid"] for alert in later] == [79]


def test_text_of_a_kmsg_record() -> None:
    """Prefix and key lines are not the text (Documentation/ABI/testing/dev-kmsg)."""
    assert text_of(b"6,339,5140900,-;NET: Registered PF_INET6\n SUBSYSTEM=net\n DEVICE=+x\n") == (
        "NET: Registered PF_INET6"
    )
    assert text_of(b"") == ""


@pytest.fixture
def kmsg() -> Path:
    """The kernel's own ring buffer, if this host lets us write to it."""
    path = Path("/dev/kmsg")
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except OSError:
        pytest.skip("/dev/kmsg cannot be written here")
    os.close(descriptor)
    return path


def test_the_real_ring_buffer_is_followed(kmsg: Path) -> None:
    """From now on: a line written to /dev/kmsg comes back as an alert."""
    follower = Kmsg(kmsg)
    marker = f"holdfast test {os.getpid()}"
    try:
        with kmsg.open("w") as file:
            file.write(f"{marker}\n")
    except OSError:
        pytest.skip("/dev/kmsg takes no lines here")
    lines = follower.lines()
    follower.close()
    if not lines:
        pytest.skip("/dev/kmsg shows nothing here")
    assert lines[-1] == marker


def test_a_kernel_log_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    """No permission, no file: no lines and no exception."""
    assert Kmsg(tmp_path / "nothing").lines() == []


def test_log_is_the_machines_own_unless_set(tmp_path: Path) -> None:
    """With the local driver a file in the machine's folder; the setting names another."""
    local = Roots.of(tmp_path, "m0", Settings())
    assert local.kernel_log == machine_dir(tmp_path, "m0") / "kernel.log"
    assert local.sys == machine_dir(tmp_path, "m0") / "sys"
    named = Roots.of(tmp_path, "m0", Settings(kernel_log="/var/log/kern.log"))
    assert named.kernel_log == Path("/var/log/kern.log")


def test_on_a_machine_of_its_own_the_kernel_itself_is_watched(tmp_path: Path) -> None:
    """Any driver but the local one."""
    roots = Roots.of(tmp_path, "m0", Settings.model_construct(driver="slurm", kernel_log=""))
    assert (roots.kernel_log, roots.sys, roots.proc) == (Path("/dev/kmsg"), Path("/sys"), Path("/proc"))
