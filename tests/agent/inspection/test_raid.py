"""Software RAID: real outputs in a machine's folder become alerts of its detectors."""

from __future__ import annotations

from pathlib import Path

from holdfast.agent.inspection.base import Detector
from holdfast.models.alert import AlertKind
from tests.agent.inspection.stub_tools import Machine, detector_of, of_local_driver
from tests.corpus.items import real


def raid(machine: Machine) -> Detector:
    return detector_of(machine, "raid")


def test_an_array_that_lost_too_many_members_is_a_disk_fault(tmp_path: Path) -> None:
    """A RAID 5 without two of twelve, mounted: at once, and surely in an inspection."""
    machine = of_local_driver(tmp_path)
    machine.prints("mdstat", real("md-two-of-twelve"))
    [alert] = raid(machine).poll()
    assert (alert.kind, alert.evidence["device"]) == (AlertKind.DISK_FAULT, "md0")
    assert "failed: sde1" in alert.evidence["detail"]
    [finding] = raid(machine).inspect()
    assert (finding.ok, finding.sure) == (False, True)


def test_a_broken_array_that_nothing_uses_is_noted(tmp_path: Path) -> None:
    """Forgotten arrays of old disks are no fault of the machine."""
    machine = of_local_driver(tmp_path)
    machine.prints("mdstat", real("md-two-of-twelve"))
    (machine.proc / "mounts").write_text("/dev/sda1 / ext4 rw 0 0\n")
    [alert] = raid(machine).poll()
    assert alert.kind is AlertKind.HOST_FAULT
    assert (alert.evidence["check"], alert.evidence["harmless"]) == ("md_broken", True)
    assert all(finding.ok for finding in raid(machine).inspect())


def test_an_array_below_a_volume_is_in_use(tmp_path: Path) -> None:
    """Volumes and encrypted devices are its holders."""
    machine = of_local_driver(tmp_path)
    machine.prints("mdstat", real("md-all-failed"))
    (machine.proc / "mounts").write_text("/dev/mapper/data /data ext4 rw 0 0\n")
    (machine.sys / "block/md6/holders/dm-0").mkdir(parents=True)
    assert [alert.kind for alert in raid(machine).poll()] == [AlertKind.DISK_FAULT]


def test_a_degraded_array_is_noted_and_keeps_no_machine_out(tmp_path: Path) -> None:
    """It works on."""
    machine = of_local_driver(tmp_path)
    machine.prints("mdstat", real("md-bitmap-degraded"))
    [alert] = raid(machine).poll()
    assert alert.evidence["harmless"] is True
    assert all(finding.ok for finding in raid(machine).inspect())


def test_mdadm_decides_where_the_file_does_not(tmp_path: Path) -> None:
    """Far copies: only mdadm knows which members hold the same data. (Its output is that of another array, renamed.)"""
    machine = of_local_driver(tmp_path)
    machine.prints("mdstat", real("md-far-copies"))
    assert [alert.kind for alert in raid(machine).poll()] == [AlertKind.HOST_FAULT]
    machine.prints("mdadm", real("ma-mirror-lost-both").replace("md90", "md127"))
    assert [alert.kind for alert in raid(machine).poll()] == [AlertKind.DISK_FAULT]
    assert machine.calls("mdadm") == ["--detail /dev/md127"]


def test_mdadm_is_not_asked_about_whole_arrays(tmp_path: Path) -> None:
    """The state in the file is enough."""
    machine = of_local_driver(tmp_path)
    machine.prints("mdstat", real("md-auto-read-only"))
    machine.prints("mdadm", "")
    assert all(finding.ok for finding in raid(machine).inspect())
    assert machine.calls("mdadm") == []


def test_a_machine_without_arrays_is_not_tested(tmp_path: Path) -> None:
    """No file, or no array in it."""
    machine = of_local_driver(tmp_path)
    assert raid(machine).inspect() == []
    machine.prints("mdstat", "Personalities : \nunused devices: <none>\n")
    assert raid(machine).inspect() == []
