"""What a rank and its agent share."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from holdfast.agent import wire
from holdfast.errors import UnavailableError


def test_a_control_page_is_there_as_a_whole_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a hole of a full file system a write ends the process that writes: the agent, and its machine is evicted."""
    path = tmp_path / "control"
    wire.Control(path, create=True).close()
    assert path.stat().st_blocks * 512 >= wire.CONTROL_BYTES

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UnavailableError, match="No space left on device"):
        wire.Control(path, create=True)
