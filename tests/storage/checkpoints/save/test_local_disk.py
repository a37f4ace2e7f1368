"""Folders that may and may not be a first tier on disk, by a table of mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.save import local_disk


def mounts(tmp_path: Path, kind: str) -> Path:
    """A table in which ``tmp_path/a disk`` is a mount of that type."""
    point = str(tmp_path / "a disk").replace(" ", r"\040")
    table = tmp_path / "mountinfo"
    table.write_text(
        "21 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw\n"
        f"40 21 0:50 / {point} rw,relatime shared:2 - {kind} source rw\n"
    )
    return table


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "overlay", "fuseblk", "tmpfs"])
def test_a_local_file_system_will_do(tmp_path: Path, kind: str) -> None:
    """The mount that the folder lies on counts, not the root's."""
    folder = tmp_path / "a disk" / "shards"
    folder.mkdir(parents=True)
    table = mounts(tmp_path, kind)
    assert local_disk.file_system(folder, table) == kind
    assert local_disk.file_system(tmp_path, table) == "ext4"
    local_disk.require(folder, table)


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "ceph", "lustre", "beegfs", "9p", "fuse", "fuse.s3fs"]
)
def test_a_network_file_system_is_refused(tmp_path: Path, kind: str) -> None:
    """By its name, with the folder and what to do."""
    folder = tmp_path / "a disk"
    folder.mkdir()
    with pytest.raises(CheckpointError, match=rf"lies on {kind}, a network file system.*first_tier: memory"):
        local_disk.require(folder, mounts(tmp_path, kind))


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    """It is not made: a disk that is not mounted would be the root's."""
    with pytest.raises(CheckpointError, match="is no folder on this machine"):
        local_disk.require(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_of_this_machine(tmp_path: Path) -> None:
    """With the kernel's own table."""
    local_disk.require(tmp_path)
    assert local_disk.file_system(Path("/proc")) == "proc"
