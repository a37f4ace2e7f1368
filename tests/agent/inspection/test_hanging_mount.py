"""A real mount whose server never answers: a FUSE file system that nobody serves, as an NFS server that is away."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.inspection.mount_probe import MountProbe
from holdfast.agent.inspection.mounts import Mounts
from holdfast.models.alert import AlertKind
from tests.agent.inspection.kit import LIMITS
from tests.e2e.waiting import wait_for

_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A folder that no call about returns from, and the server's end of it."""
    folder = tmp_path / "shared"
    folder.mkdir()
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"FUSE takes root and its device: {error}")
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    if _libc.mount(b"silent", str(folder).encode(), b"fuse", 0, options):
        os.close(server)
        pytest.skip(f"the kernel forbids it: {os.strerror(ctypes.get_errno())}")
    try:
        yield folder, server
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.e2e
def test_a_mount_that_hangs_is_told_and_holds_nobody_up(tmp_path: Path, silent: tuple[Path, int]) -> None:
    """In bounded time, as long as it hangs; when its server is gone it is as a server that is away."""
    folder, server = silent
    limits = LIMITS.storage.model_copy(update={"paths": (str(folder),), "mount_timeout_s": 0.3})
    mounts = Mounts(tmp_path, limits, MountProbe)
    try:
        for _ in range(2):
            (sign,) = [sign for sign in mounts.look() if not sign.ok]
            assert (sign.kind, sign.device) == (AlertKind.MOUNT_UNRESPONSIVE, str(folder))
            assert "has not answered" in sign.detail
        os.close(server)  # the kernel ends all that waits for it
        seen: list[str] = []

        def is_away() -> bool:
            seen.extend(sign.detail for sign in mounts.look() if not sign.ok)
            return any("not connected" in told for told in seen)

        wait_for(lambda: f"it is told as away: {seen}", is_away, 30)
    finally:
        for probe in mounts._probes.values():
            probe.close()  # type: ignore[attr-defined]
