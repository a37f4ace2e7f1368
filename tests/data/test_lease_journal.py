"""The journal of a lease book: cut anywhere, on a full disk, shared by two books, grown."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

import pytest

from holdfast import data
from holdfast.data import lease_book
from holdfast.data.lease_book import LeaseBook
from holdfast.data.leases import Lease
from holdfast.errors import SettingsError, StaleError, UnavailableError
from tests.data.files import three_hours, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return three_hours(tmp_path)


def test_a_book_goes_on_from_its_journal_cut_anywhere(folder: Path, tmp_path: Path) -> None:
    """Each prefix of its lines is a state that it was in; a line that was cut off was never answered."""
    journal = tmp_path / "journal"
    book = LeaseBook(data.folder(folder), journal=journal, clock=lambda: 5.0)
    states = [book.state_dict()]
    lengths = [journal.stat().st_size]
    for number in range(8):
        found = book.grant(f"w{number}", ())
        assert found
        lease = found[0]
        states.append(book.state_dict())
        lengths.append(journal.stat().st_size)
        book.commit(book.run, lease.split, lease.token, lease.first + number % 3)
        states.append(book.state_dict())
        lengths.append(journal.stat().st_size)
    content = journal.read_bytes()
    for length in {*range(lengths[0], len(content), 7), *lengths}:
        journal.write_bytes(content[:length])
        again = LeaseBook(data.folder(folder), journal=journal, clock=lambda: 5.0)
        assert again.run == book.run
        assert again.state_dict() == states[max(at for at, each in enumerate(lengths) if each <= length)]
        again.close()
    journal.write_text("[]\n")
    with pytest.raises(SettingsError, match="no journal of leases of this data"):
        LeaseBook(data.folder(folder), journal=journal)


def test_a_journal_on_a_full_disk_holds_what_was_answered(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The act that failed is not in it, nor is half of its line; what comes after it is."""
    journal = tmp_path / "journal"
    book = LeaseBook(data.folder(folder), journal=journal)
    assert book.grant("w0")
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.data.lease_book.os.fdatasync", _full)
        with pytest.raises(OSError, match="full"):
            book.grant("w1")
    with journal.open("ab") as torn:
        torn.write(b'["grant", "w')
    found = book.grant("w2")
    assert found
    book.close()
    again = LeaseBook(data.folder(folder), journal=journal)
    assert again.state_dict() == book.state_dict()
    again.commit(again.run, found[0].split, found[0].token, 3)


def _full(*_arguments: object) -> None:
    raise OSError("the disk is full")


def test_a_book_that_is_closed_answers_nothing_that_its_journal_lacks(folder: Path, tmp_path: Path) -> None:
    """A request that was under way when its server ended: workers ask the next one again."""
    book = LeaseBook(data.folder(folder), journal=tmp_path / "journal")
    found = book.grant("w0")
    assert found
    book.close()
    with pytest.raises(UnavailableError, match="is closed"):
        book.commit(book.run, found[0].split, found[0].token, 3)
    assert book.used == 0


def test_a_book_whose_journal_another_has_does_nothing_more(folder: Path, tmp_path: Path) -> None:
    """Both would grant the same rows under the same token."""
    first = LeaseBook(data.folder(folder), journal=tmp_path / "journal")
    found = first.grant("w0")
    assert found
    again = LeaseBook(data.folder(folder), journal=tmp_path / "journal")
    with pytest.raises(StaleError, match="another book"):
        first.grant("w1")
    with pytest.raises(StaleError, match="another book"):
        first.commit(first.run, found[0].split, found[0].token, 3)
    again.commit(again.run, found[0].split, found[0].token, 3)


def test_what_is_answered_while_another_book_begins_is_not_lost(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After that one has read the journal and before it claims it; what comes later is not answered."""
    journal = tmp_path / "journal"
    first = LeaseBook(data.folder(folder), journal=journal)
    found = first.grant("w0")
    assert found
    lease = found[0]
    claim, begin = lease_book._claim, LeaseBook._begin

    def claimed(file: IO[bytes]) -> None:
        first.commit(first.run, lease.split, lease.token, 3)
        claim(file)

    def begun(book: LeaseBook, path: Path) -> None:
        with pytest.raises(StaleError, match="another book"):
            first.commit(first.run, lease.split, lease.token, 5)
        begin(book, path)

    with monkeypatch.context() as patch:
        patch.setattr(lease_book, "_claim", claimed)
        patch.setattr(LeaseBook, "_begin", begun)
        again = LeaseBook(data.folder(folder), journal=journal)
    assert again.used == 3
    again.commit(again.run, lease.split, lease.token, 5)
    again.close()
    assert LeaseBook(data.folder(folder), journal=journal).used == 5


def test_of_two_books_that_begin_one_journal_the_later_goes_on_from_the_other(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found none: the journal of one would be put in place of the other's, with what that has granted."""
    journal, alone = tmp_path / "journal", lease_book._alone
    granted: list[tuple[LeaseBook, Lease]] = []

    def meanwhile(file: IO[bytes]) -> AbstractContextManager[None]:
        monkeypatch.setattr(lease_book, "_alone", alone)
        other = LeaseBook(data.folder(folder), journal=journal)
        found = other.grant("w0")
        assert found
        granted.append((other, found[0]))
        return alone(file)

    monkeypatch.setattr(lease_book, "_alone", meanwhile)
    book = LeaseBook(data.folder(folder), journal=journal)
    ((other, lease),) = granted
    with pytest.raises(StaleError, match="another book"):
        other.grant("w1")
    again = book.grant("w0")
    assert again
    assert (again[0].split, again[0].token, book.run) == (lease.split, lease.token, other.run)


def test_a_book_waits_for_another_one_that_begins_the_journal_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the slower one would put its journal in place of one in which the other has noted acts already."""
    journal = tmp_path / "journal"
    first = LeaseBook(data.folder(folder), journal=journal)
    monkeypatch.setattr(lease_book, "_PATIENCE_S", 0.05)
    with (
        journal.open("rb") as other,
        lease_book._alone(other),
        pytest.raises(UnavailableError, match="another book begins this journal again"),
    ):
        LeaseBook(data.folder(folder), journal=journal)
    assert first.grant("w0")


def test_an_act_that_is_noted_is_answered_whatever_becomes_of_the_journal(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is refused a commit drops its rows, and the next book has them as used."""
    journal = tmp_path / "journal"
    book = LeaseBook(data.folder(folder), journal=journal)
    found = book.grant("w0")
    assert found
    monkeypatch.setattr(lease_book, "_MOST_LINES", 1)
    book._begun = 0
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.data.lease_book.durable.write", _full)
        book.commit(book.run, found[0].split, found[0].token, 3)
    assert LeaseBook(data.folder(folder), journal=journal).used == 3


def test_leases_of_another_length_are_done_again_as_they_were(folder: Path, tmp_path: Path) -> None:
    """With the new length the first lease would have ended before the second grant, which would get its split."""
    journal = tmp_path / "journal"
    now = [0.0]
    book = LeaseBook(data.folder(folder), journal=journal, length_s=60, clock=lambda: now[0])
    first = book.grant("w0")
    now[0] = 30.0
    second = book.grant("w1")
    assert first
    assert second
    book.commit(book.run, first[0].split, first[0].token, 2)
    book.close()
    again = LeaseBook(data.folder(folder), journal=journal, length_s=10, clock=lambda: now[0])
    again.commit(again.run, first[0].split, first[0].token, 3)
    again.commit(again.run, second[0].split, second[0].token, 1)
    assert again.used == 4


def test_a_listing_that_grew_is_in_the_journal_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it could not be written at first: no act on the new files is noted before."""
    monkeypatch.setattr(lease_book, "_PART", 0.0)
    journal = tmp_path / "journal"
    book = LeaseBook(data.folder(folder, follow=True), journal=journal)
    granted = 0
    while book.grant(f"w{granted}"):
        granted += 1
    write(folder / "20261124/09/y.parquet", [1, 2, 3])
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.data.lease_book.durable.write", _full)
        with pytest.raises(OSError, match="full"):
            book.grant("new")
        with pytest.raises(OSError, match="full"):
            book.grant("new")
    found = book.grant("new")
    assert found
    assert found[2].path == "20261124/09/y.parquet"
    book.close()
    assert journal.read_bytes().count(b"listing") == 1
    assert LeaseBook(data.folder(folder, follow=True), journal=journal).grant("new") == found
