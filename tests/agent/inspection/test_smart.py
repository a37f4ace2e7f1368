"""Disks through a ``smartctl`` that prints what the real tool printed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.inspection import smart as smart_disks
from holdfast.agent.inspection.base import Detector
from holdfast.agent.inspection.tool import Tool
from holdfast.models.alert import AlertKind
from holdfast.policies.classify import smart
from tests.agent.inspection.stub_tools import Machine, detector_of, of_local_driver
from tests.corpus.items import real


def disks(machine: Machine) -> Detector:
    return detector_of(machine, "smart")


def nvme(passed: bool | None = None, **log: int) -> str:
    """The real output of a healthy disk with other numbers in its log."""
    report: dict[str, Any] = json.loads(real("s-nvme-old-media-errors"))
    report["nvme_smart_health_information_log"] |= log
    if passed is not None:
        report["smart_status"]["passed"] = passed
    return json.dumps(report)


def test_a_disk_that_predicts_its_failure_is_reported_once(tmp_path: Path) -> None:
    """With the attributes that are below their threshold."""
    machine = of_local_driver(tmp_path)
    machine.prints("smartctl", real("s-hitachi-failed"), status=216)
    detector = disks(machine)
    [alert] = detector.poll()
    assert (alert.kind, alert.evidence["check"]) == (AlertKind.HOST_FAULT, "disk_failing")
    assert alert.evidence["device"] == "/dev/sdc"
    assert "Reallocated_Sector_Ct 1 (threshold 5)" in alert.evidence["detail"]
    assert detector.poll() == []
    assert machine.calls("smartctl")[0] == "-j -a -n standby /dev/sdc"


def test_only_errors_that_are_new_count(tmp_path: Path) -> None:
    """Seven of the disk's whole life are nothing; two more while it is watched are a fault."""
    machine = of_local_driver(tmp_path)
    detector = disks(machine)
    machine.prints("smartctl", nvme(media_errors=7))
    assert detector.poll() == []
    machine.prints("smartctl", nvme(media_errors=9))
    [alert] = detector.poll()
    assert (alert.evidence["check"], alert.evidence["value"]) == ("disk_errors", 2)
    assert detector.poll() == []


def test_a_disk_that_is_old_without_an_error_is_noted(tmp_path: Path) -> None:
    """Critical warning 4 with all of its rated life used, as one of a workstation that ran on for a year."""
    machine = of_local_driver(tmp_path)
    machine.prints(
        "smartctl", nvme(passed=False, critical_warning=4, percentage_used=100, media_errors=0), status=8
    )
    [alert] = disks(machine).poll()
    assert (alert.evidence["check"], alert.evidence["harmless"]) == ("disk_warning", True)


@pytest.mark.parametrize(
    ("log", "failing"),
    [
        ({"critical_warning": 4, "percentage_used": 100, "media_errors": 3}, True),
        ({"critical_warning": 4, "percentage_used": 12, "media_errors": 0}, True),
        ({"critical_warning": 2}, False),
        ({"critical_warning": 3}, True),
        ({"critical_warning": 8}, True),
        ({"critical_warning": 0}, True),
    ],
)
def test_only_heat_and_age_are_mild(log: dict[str, int], failing: bool) -> None:
    """Too little spare, read-only media, or age with errors is a disk that fails."""
    found = smart.read(nvme(passed=False, **log))
    assert found is not None
    assert found.failing is failing


def test_counters_behind_a_broken_checksum_are_not_read() -> None:
    """Exit status 4: a command failed or data are garbled; the disk's own verdict is a command of its own."""
    report = json.loads(real("s-nvme-old-media-errors"))
    report["smartctl"]["exit_status"] = 4
    found = smart.read(json.dumps(report))
    assert found is not None
    assert (found.errors, found.failing) == ({}, False)


def test_a_disk_that_nothing_uses_is_not_asked(tmp_path: Path) -> None:
    """It may sleep, and holds nothing of a job."""
    machine = of_local_driver(tmp_path)
    machine.prints("smartctl", real("s-hitachi-failed"), status=216)
    (machine.proc / "mounts").write_text("")
    assert disks(machine).poll() == []
    assert machine.calls("smartctl") == []


def test_a_part_that_is_mounted_or_in_an_array_uses_its_disk(tmp_path: Path) -> None:
    """Partitions and holders are looked at."""
    machine = of_local_driver(tmp_path)
    machine.prints("smartctl", real("s-hitachi-failed"), status=216)
    (machine.proc / "mounts").write_text("")
    (machine.sys / "block/sdc/sdc1/holders/md0").mkdir(parents=True)
    assert len(disks(machine).poll()) == 1


def test_an_inspection_on_command_asks_the_disks(tmp_path: Path) -> None:
    """A disk that failed since the last look, up to ten minutes ago, is in the findings of a diagnosis; one report."""
    machine = of_local_driver(tmp_path)
    machine.prints("smartctl", real("s-hitachi-failed"), status=216)
    detector = disks(machine)
    [finding] = detector.inspect()
    assert not finding.ok
    assert "/dev/sdc reports that it fails" in finding.detail
    assert not finding.sure, "it explains the end of a rank, and accuses no machine alone"
    assert [alert.evidence["check"] for alert in detector.poll()] == ["disk_failing"]
    assert detector.poll() == []


def test_an_inspection_on_command_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither good nor bad: the disks behind it are not tested either, and the finding names them."""
    monkeypatch.setattr(smart_disks, "COMMAND_S", 0.3)
    machine = of_local_driver(tmp_path)
    machine.mount("sda", "sdb")
    machine.prints("smartctl", real("s-hitachi-failed"), status=216)
    (machine.bin / "smartctl").write_text("#!/bin/sh\nsleep 60\n")
    started = time.monotonic()
    [finding] = disks(machine).inspect()
    assert finding.ok
    assert finding.detail == "not tested within 0.3 s: /dev/sda, /dev/sdb"
    assert time.monotonic() - started < 15, "the tool's own limit is 20 s"


def test_a_disk_that_reports_nothing_of_its_health_is_not_reported_as_late(tmp_path: Path) -> None:
    """A virtual disk answers at once: what a recovery reads of it must not look like a disk that hangs."""
    machine = of_local_driver(tmp_path)
    machine.mount("sda")
    machine.prints("smartctl", "{}", status=2)
    assert disks(machine).inspect() == []


def test_without_the_tool_nothing_is_tested(tmp_path: Path) -> None:
    """As on most machines."""
    machine = of_local_driver(tmp_path)
    machine.mount("sda")
    assert disks(machine).poll() == []
    assert disks(machine).inspect() == []


@pytest.mark.parametrize("text", ["", "smartctl: invalid option -- 'j'\n", "[]", '{"smart_status": "odd"}'])
def test_output_without_a_verdict_accuses_no_machine(tmp_path: Path, text: str) -> None:
    """Old versions, other forms, nothing at all."""
    machine = of_local_driver(tmp_path)
    machine.mount("sda")
    machine.prints("smartctl", text, status=1)
    assert disks(machine).poll() == []


def test_a_tool_that_hangs_is_given_up(tmp_path: Path) -> None:
    """With all that it started; the agent goes on."""
    program = tmp_path / "smartctl"
    program.write_text("#!/bin/sh\nsleep 60\n")
    program.chmod(0o755)
    assert Tool("smartctl", 0.2, str(tmp_path)).ask("-j") == ""


def test_tools_are_found_on_the_agents_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine of its own; and nowhere else."""
    machine = of_local_driver(tmp_path)
    machine.prints("smartctl", real("s-intel-nvme"))
    monkeypatch.setenv("PATH", f"{machine.bin}:/usr/bin:/bin")
    assert "INTEL SSDPE2KX080T8" in Tool("smartctl", 5.0).ask("-j")
    assert not Tool("no-such-tool", 5.0).installed
