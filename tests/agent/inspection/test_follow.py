"""Following a log file through everything that happens to log files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.agent.inspection.follow import Follower


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with history."""
    path = tmp_path / "kernel.log"
    path.write_text("old line\n")
    return path


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_only_lines_written_after_start_count(log: Path) -> None:
    """History belongs to an earlier incarnation."""
    follower = Follower(log)
    assert follower.lines() == []
    append(log, "one\ntwo\n")
    assert follower.lines() == ["one", "two"]
    assert follower.lines() == []


def test_partial_line_waits_for_its_end(log: Path) -> None:
    """A line is handed out once, whole."""
    follower = Follower(log)
    append(log, "hal")
    assert follower.lines() == []
    append(log, "f\nnext")
    assert follower.lines() == ["half"]


def test_a_bar_that_is_drawn_on_one_line_hides_nothing(log: Path) -> None:
    """Each time it is drawn is a line, so that what follows it is not cut."""
    follower = Follower(log)
    drawn = "".join(f"\r{step:4d}/9999 {'#' * 60}" for step in range(1000))
    append(log, f"{drawn}CUDA error: unknown error\r\n")
    *bars, last = follower.lines()
    assert len(bars) == 1000
    assert last.endswith("CUDA error: unknown error")


def test_file_that_appears_later_is_read_from_its_start(tmp_path: Path) -> None:
    """An agent may start before its kernel log."""
    follower = Follower(tmp_path / "later.log")
    assert follower.lines() == []
    append(tmp_path / "later.log", "first\n")
    assert follower.lines() == ["first"]


def test_truncated_file_is_read_from_its_start(log: Path) -> None:
    """As with logrotate's copytruncate."""
    follower = Follower(log)
    append(log, "x" * 100 + "\n")
    follower.lines()
    log.write_text("new\n")
    assert follower.lines() == ["new"]


def test_rotation_loses_no_line(log: Path) -> None:
    """Read lines from before and after the rename of the file, in order."""
    follower = Follower(log)
    append(log, "before\n")
    os.rename(log, log.with_suffix(".1"))
    append(log, "after\n")
    assert follower.lines() == ["before", "after"]


def test_line_written_between_rename_and_new_file_is_read(log: Path) -> None:
    """The writer keeps the old file open for a while."""
    follower = Follower(log)
    old = log.with_suffix(".1")
    os.rename(log, old)
    append(old, "late\n")
    assert follower.lines() == ["late"]
    append(log, "new\n")
    assert follower.lines() == ["new"]


def test_line_without_end_keeps_memory_bounded(log: Path) -> None:
    """Garbage without line ends is cut."""
    follower = Follower(log)
    for _ in range(5):
        append(log, "x" * (1 << 16))
        follower.lines()
    append(log, "\nafter\n")
    cut, after = follower.lines()
    assert len(cut) <= 16 << 10
    assert after == "after"


def test_bytes_that_are_no_text_do_no_harm(log: Path) -> None:
    """Kernel logs hold anything."""
    follower = Follower(log)
    with log.open("ab") as file:
        file.write(b"\xff\xfe\x00\n")
    assert len(follower.lines()) == 1
