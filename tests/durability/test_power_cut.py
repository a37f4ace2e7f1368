"""Power lost at any moment: what was acknowledged is there afterwards, and nothing torn is taken for whole."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from holdfast import durable
from holdfast.clock import FakeClock
from holdfast.storage.ledger import Ledger
from tests.durability import cut, sqlite_cut, work

pytestmark = pytest.mark.torch

IN_FILES = [name for name in work.ALL if name not in {"ledger", "header"}]
"""The ledger's files are SQLite's; a header changes in memory, and its digest shows whether the rest was written."""


@pytest.mark.parametrize("name", IN_FILES)
def test_a_power_cut_at_any_moment_loses_nothing_acknowledged(tmp_path: Path, name: str) -> None:
    """Checked on every state that the folder may be in then."""
    folder, each = tmp_path / "work", work.ALL[name]
    folder.mkdir()
    each.prepare(folder)
    with cut.recording(folder) as recorder:
        each.do(folder, recorder.acknowledge)
    assert recorder.acknowledged
    for number, state in enumerate(recorder.states):
        left = tmp_path / f"left{number}"
        state.lay_out(left)
        each.check(left, state.acknowledged)


@pytest.mark.parametrize("lacking", ["file", "folder"])
def test_a_rename_without_a_sync_is_found(
    tmp_path: Path, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: with one of the two syncs left out, there is a state that lost what was acknowledged."""

    sync = durable.sync

    def some(path: Path) -> None:
        if path.is_dir() != (lacking == "folder"):
            sync(path)

    monkeypatch.setattr(durable, "sync", some)
    with pytest.raises((AssertionError, ValueError)):
        test_a_power_cut_at_any_moment_loses_nothing_acknowledged(tmp_path, "roster")


@pytest.mark.parametrize("mode", ["FULL", "NORMAL"])
def test_no_epoch_number_is_given_twice_after_a_power_cut(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every number and epoch that was acknowledged is in what SQLite had synced by then; less is not enough."""
    if (sqlite := sqlite_cut.library()) is None:
        pytest.skip("SQLite is built into this Python")
    folder, each = tmp_path / "work", work.ALL["ledger"]
    folder.mkdir()
    acknowledged: list[str] = []
    with sqlite_cut.recording(sqlite) as disk:
        each.prepare(folder)
        if mode == "NORMAL":
            weaken(monkeypatch)

        def acknowledge(line: str) -> None:
            acknowledged.append(line)
            disk.lay_out(folder, tmp_path / f"left{len(acknowledged)}")

        each.do(folder, acknowledge)
    if mode == "FULL":
        for number in range(len(acknowledged)):
            each.check(tmp_path / f"left{number + 1}", acknowledged[: number + 1])
    else:
        with pytest.raises(AssertionError):
            each.check(tmp_path / "left1", acknowledged[:1])


def weaken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ledgers sync as little as many programs do in WAL mode."""
    made = Ledger.next_epoch

    def next_epoch(ledger: Ledger, name: str) -> int:
        with ledger._engine.connect() as connection:
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("PRAGMA synchronous=NORMAL")
        return made(ledger, name)

    monkeypatch.setattr(Ledger, "next_epoch", next_epoch)


def test_every_connection_of_a_ledger_syncs_each_commit(tmp_path: Path) -> None:
    """Also where the state of the disk cannot be recorded."""
    with closing(Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", FakeClock())) as ledger:
        ledger.create()
        with ledger._engine.connect() as one, ledger._engine.connect() as other:
            found = [each.exec_driver_sql("PRAGMA synchronous").scalar() for each in (one, other)]
    assert found == [2, 2]
