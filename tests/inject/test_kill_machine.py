"""The files and memory of a dead machine are gone, also what a dying thread of it made meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast.errors import UnavailableError
from holdfast.inject import kill_machine


def test_what_is_made_during_the_removal_goes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, remove, made = tmp_path / "m0", shutil.rmtree, []
    (folder / "unit").mkdir(parents=True)

    def removes(path: Path, *, ignore_errors: bool) -> None:
        if not made:
            made.append(path)
            return  # a file that came too late kept the folder
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(kill_machine.shutil, "rmtree", removes)
    kill_machine._erase(folder)
    assert made
    assert not folder.exists()


def test_a_folder_that_stays_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill_machine, "LONGEST_S", 0.0)
    monkeypatch.setattr(kill_machine.shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(UnavailableError, match="cannot be removed"):
        kill_machine._erase(tmp_path)


def test_a_removal_that_takes_long_and_leaves_nothing_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a checkout of thousands of files, on a busy host."""
    monkeypatch.setattr(kill_machine, "LONGEST_S", -1.0)
    (folder := tmp_path / "m0").mkdir()
    kill_machine._erase(folder)
    assert not folder.exists()
