"""Host inspection: memory, disk, and patience."""

from __future__ import annotations

from pathlib import Path

from holdfast.agent.inspection.base import Limits
from holdfast.agent.inspection.host import HostDetector, HostReader, Reading
from holdfast.models.alert import AlertKind


class Script:
    """Readings by hand."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []

    def __call__(self) -> list[Reading]:
        return self.readings


def reading(check: str, *, ok: bool, at_once: bool = False) -> Reading:
    return Reading(check=check, value=0, limit=1, ok=ok, detail=check, at_once=at_once)


def test_this_host_passes(tmp_path: Path) -> None:
    """The default limits do not accuse a machine that works."""
    findings = HostDetector("m0", tmp_path, Limits()).inspect()
    assert {finding.check for finding in findings} == {"memory_low", "disk_full", "filesystem_readonly"}
    assert all(finding.ok for finding in findings)


def test_limits_can_be_set(tmp_path: Path) -> None:
    """A limit that cannot be met fails."""
    readings = HostReader(tmp_path, Limits(disk_free_bytes=1 << 60))()
    assert {each.check for each in readings if not each.ok} == {"disk_full"}


def test_missing_disk_is_a_disk_fault(tmp_path: Path) -> None:
    """A file system that does not answer is a fault, not an exception."""
    findings = HostDetector("m0", tmp_path / "gone", Limits()).inspect()
    assert "disk_fault" in {finding.check for finding in findings if not finding.ok}


def test_alert_waits_for_misses_in_a_row_and_fires_once(tmp_path: Path) -> None:
    """A dip is not a fault; a lasting one is one alert; a second one after recovery is another."""
    script = Script()
    detector = HostDetector("m0", tmp_path, Limits(misses=2), script)

    def polls(*goods: bool) -> list[int]:
        counts = []
        for ok in goods:
            script.readings = [reading("memory_low", ok=ok)]
            counts.append(len(detector.poll()))
        return counts

    assert polls(False, True, False, False, False, True, False, False) == [0, 0, 0, 1, 0, 0, 0, 1]


def test_fault_that_does_not_pass_fires_at_once(tmp_path: Path) -> None:
    """A disk that is gone does not come back in two seconds."""
    script = Script()
    script.readings = [reading("disk_fault", ok=False, at_once=True)]
    [alert] = HostDetector("m0", tmp_path, Limits(), script).poll()
    assert alert.kind is AlertKind.HOST_FAULT
    assert alert.evidence["check"] == "disk_fault"
