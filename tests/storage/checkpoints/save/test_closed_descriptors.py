"""Saves of a process whose script closed all descriptors, as libraries that make a daemon do (``os.closerange``)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.storage.checkpoints.save import buffers, slot_files
from tests.storage.checkpoints.save.test_single_slot import Rank

pytestmark = pytest.mark.torch


def save_without_descriptors(folder: Path) -> None:
    rank, step = Rank(folder), 0

    def save() -> None:
        nonlocal step
        step += 1
        assert rank.start(step, in_place=False).run()
        assert step in rank.held

    save()
    save()
    os.closerange(3, 256)
    files = [os.open(os.devnull, os.O_WRONLY) for _ in range(40)]  # they have the numbers now
    for _ in range(2):
        save()
    for slot in buffers.SLOTS:
        path = buffers.shard_path(folder, 0, slot)
        slot_files.lend(path, buffers.verify(path).step, folder / f"loan-{slot}")
    for _ in range(4):  # into new files, and the old mappings end
        save()
    for each in files:
        os.close(each)


def test_saves_go_on_and_close_no_other_file(tmp_path: Path) -> None:
    """Also over slots that are lent, whose mappings are given up."""
    code = f"from {__name__} import *; save_without_descriptors(Path({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
