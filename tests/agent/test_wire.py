"""Messages and files that a rank and its agent share."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from holdfast.agent import wire
from holdfast.agent.ranks.handed import hand
from holdfast.errors import UnavailableError


def test_a_control_page_is_there_as_a_whole_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a hole of a full file system a write ends the process that writes: the agent, and its machine is evicted."""
    path = tmp_path / "control"
    wire.Control(path, create=True).close()
    assert path.stat().st_blocks * 512 >= wire.CONTROL_BYTES

    monkeypatch.setattr(os, "posix_fallocate", _full)
    with pytest.raises(UnavailableError, match="No space left on device"):
        wire.Control(path, create=True)


def test_what_is_handed_to_a_rank_is_there_as_a_whole_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the file and what to do: it ends up in the incident."""
    path = tmp_path / "ticket"
    hand(path, {"step": 3})
    assert json.loads(path.read_text()) == {"step": 3}
    monkeypatch.setattr(os, "open", _full)
    with pytest.raises(UnavailableError, match=r"ticket cannot be written \(No space"):
        hand(path, {"step": 4})
    monkeypatch.undo()
    assert json.loads(path.read_text()) == {"step": 3}


def _full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
