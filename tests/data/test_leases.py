"""Leases of splits: each row is committed once, whichever worker dies."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import data
from holdfast.data import lease_book
from holdfast.data.lease_book import LeaseBook
from holdfast.data.leases import Lease, Leases
from holdfast.errors import SettingsError, StaleError, UnauthorizedError, UnavailableError
from tests.data.files import ids, three_hours, write
from tests.data.lease_process import TOKEN
from tests.e2e.waiting import free_ports, wait_for

ACTS = st.lists(
    st.tuples(
        st.sampled_from(["grant", "commit", "back", "gone", "late", "restore", "save", "stale"]),
        st.integers(0, 9),
    ),
    max_size=60,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return three_hours(tmp_path)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=6), ACTS)
def test_each_row_is_committed_once(rows: list[int], acts: list[tuple[str, int]]) -> None:
    """Whatever workers do, however late; relative to the state that is restored."""
    leases, now = Leases.of(rows), 0.0
    known: list[Lease] = []  # whatever a worker ever believed to hold
    used: Counter[tuple[int, int]] = Counter()
    saved = leases.state(), used.copy(), len(rows)
    for act, number in acts:
        worker = f"w{number % 3}"
        if act == "grant":
            leases, lease = leases.grant(worker, now, 10)
            if lease:
                assert lease.token > max((each.token for each in known), default=0)
                known.append(lease)
        elif act in ("commit", "stale") and known:
            lease = known[-1 - number % len(known)] if act == "stale" else known[-1]
            before = leases.upto(lease.split)
            upto = min(lease.rows, before + 1 + number % 3)
            holds = lease.split in leases.held and leases.held[lease.split].token == lease.token
            try:
                after = leases.commit(lease.split, lease.token, upto, now, 10)
                assert holds or (after == leases and upto <= before)  # or its answer was lost
                leases = after
                used.update((lease.split, row) for row in range(before, upto))
            except StaleError:
                assert not holds
        elif act == "back" and known:
            leases = leases.give_back(known[-1].split, known[-1].token)
        elif act == "gone":
            leases = leases.gone(worker)
        elif act == "late":
            now += 11
        elif act == "save":
            saved = leases.state(), used.copy(), len(rows)
        elif act == "restore":
            leases, used = Leases.restored(rows, saved[0]).freed_all(), saved[1].copy()
            known = []  # the book's run distinguishes those of before
        assert Leases.restored(rows, leases.state()) == leases
    now += 100
    while True:  # one worker that lives does the rest
        leases, lease = leases.grant("last", now, 10)
        if lease is None:
            break
        used.update((lease.split, row) for row in range(lease.first, lease.rows))
        leases = leases.commit(lease.split, lease.token, lease.rows, now, 10)
    assert leases.done
    assert used == Counter((split, row) for split, count in enumerate(rows) for row in range(count))


def test_a_commit_back_or_past_the_end_is_refused() -> None:
    leases, lease = Leases.of([5]).grant("w", 0, 10)
    assert lease
    leases = leases.commit(0, lease.token, 3, 0, 10)
    assert leases.commit(0, lease.token, 3, 0, 10) == leases
    for wrong in (2, 6):
        with pytest.raises(SettingsError, match=f"commit of {wrong} rows: expected 3 to 5"):
            leases.commit(0, lease.token, wrong, 0, 10)


def test_a_commit_whose_answer_was_lost_is_answered_again() -> None:
    """Also the last one of a split, and after the lease went to another worker; no row more than it had."""
    leases, lease = Leases.of([5, 5]).grant("w", 0, 10)
    assert lease
    leases = leases.commit(0, lease.token, 3, 0, 10).expired(100)
    leases, other = leases.grant("v", 100, 10)
    assert other
    assert (other.split, other.first) == (0, 3)
    assert Leases.restored([5, 5], leases.state()).commit(0, lease.token, 3, 100, 10) == leases
    with pytest.raises(StaleError, match="its rows from 3 on are served to others"):
        leases.commit(0, lease.token, 4, 100, 10)
    leases = leases.commit(0, other.token, 5, 100, 10)
    assert leases.commit(0, other.token, 5, 100, 10) == leases


def test_what_is_kept_follows_from_the_workers_and_not_from_the_splits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each act copies it, and each checkpoint has it: there may be millions of splits."""
    monkeypatch.setattr("holdfast.data.leases._PAGE", 4)
    monkeypatch.setattr("holdfast.data.leases._PAGES", 2)
    leases = Leases.of([2] * 100)
    for _ in range(100):
        leases, lease = leases.grant("w", 0, 10)
        assert lease
        leases = leases.commit(lease.split, lease.token, 1, 0, 10)
        leases = leases.commit(lease.split, lease.token, 2, 0, 10)
    assert leases.done
    assert (leases.used, leases.upto(0), leases.upto(99)) == (200, 2, 2)
    assert not leases.committed
    assert not leases.held
    assert sum(map(len, leases.ended.values())) <= 8
    assert leases.commit(99, 100, 2, 0, 10) == leases
    with pytest.raises(StaleError, match="split 0: token 1 is not that of its lease"):
        leases.commit(0, 1, 2, 0, 10)


def test_the_state_of_a_release_before_is_read() -> None:
    """It has splits that are done among the others, and all tokens of a split together."""
    state = {
        "committed": [[0, 5], [1, 2]],
        "held": [[1, 3, "w", 10.0]],
        "freed": [2],
        "next": 3,
        "token": 3,
        "ended": [[0, [[1, 5]]], [2, [[2, 0]]]],
    }
    leases = Leases.restored([5, 5, 5, 5], state)
    assert (leases.used, leases.upto(0), leases.upto(1), leases.upto(2)) == (7, 5, 2, 0)
    assert leases.commit(0, 1, 5, 0, 10) == leases
    assert leases.commit(1, 3, 5, 0, 10).used == 10


SAMPLES = [hour * 100 + at for hour in range(3) for at in range(40)]


def test_a_lost_answer_is_given_again(folder: Path) -> None:
    """A worker that never learned of its lease gets the same one."""
    book = LeaseBook(data.folder(folder))
    first = book.grant("w")
    assert first
    assert book.grant("w") == first
    second = book.grant("w", (first[0].token,))
    assert second
    assert second[0].split != first[0].split


def test_a_restored_position_refuses_leases_of_before(folder: Path) -> None:
    book = LeaseBook(data.folder(folder))
    found = book.grant("w")
    assert found
    run, lease = book.run, found[0]
    state = book.state_dict()
    book.commit(run, lease.split, lease.token, 2)
    book.load_state_dict(state)
    assert book.used == 0
    with pytest.raises(StaleError, match="of a run before"):
        book.commit(run, lease.split, lease.token, 3)


def test_a_split_that_is_lost_is_left(folder: Path) -> None:
    """A worker that slept past its lease used the rest, whose rows must not count, before it asked again."""
    book = LeaseBook(data.folder(folder), length_s=3600)
    server = data.LeaseServer(book, TOKEN)
    worker = data.LeasedSplits(server.url, TOKEN, data.folder(folder), worker="w", batch=3)
    batches = iter(worker)
    lost = next(batches)
    book.gone("w")
    assert book.grant("another") is not None
    assert not worker.commit(lost.receipt)
    after = next(batches)
    assert after.receipt.split != lost.receipt.split
    worker.give_back(after.receipt)
    assert next(batches).receipt.token > after.receipt.token
    worker.close()
    server.close()


def test_a_lease_names_the_run_that_it_was_granted_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of before a restore, taken for one of after it, has the token of another worker's lease."""
    book = LeaseBook(data.folder(folder))
    server = data.LeaseServer(book, TOKEN)
    start, grant = book.state_dict(), book.grant
    restores = threading.Thread(target=book.load_state_dict, args=(start,))

    def restored_meanwhile(*asked: Any) -> Any:
        found = grant(*asked)
        restores.start()
        restores.join(0.5)
        return found

    monkeypatch.setattr(book, "grant", restored_meanwhile)
    before = server._grant({"worker": "w", "have": []})
    restores.join()
    monkeypatch.setattr(book, "grant", grant)
    after = server._grant({"worker": "v", "have": []})
    assert after["lease"]["token"] == before["lease"]["token"]
    assert after["run"] != before["run"]
    server.close()


def test_the_rank_that_has_the_book_gets_its_state(folder: Path) -> None:
    """Of three ranks the second had it; of two the first has."""
    book = LeaseBook(data.folder(folder))
    found = book.grant("w")
    assert found
    book.commit(book.run, found[0].split, found[0].token, 3)
    before = [data.lease_part(None), data.lease_part(book), data.lease_part(None)]
    again = LeaseBook(data.folder(folder))
    after = [data.lease_part(again), data.lease_part(None)]
    assert before[0].merge
    whole = before[0].merge([each.value.state_dict() for each in before])
    for rank, each in enumerate(after):
        assert each.split
        each.value.load_state_dict(each.split(whole, rank, 2))
    assert again.used == 3


def test_followed_splits_and_mixes_are_leased(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_book, "_PART", 0.0)  # new files are looked for at each request
    mix = data.mix({"a": data.folder(folder, follow=True), "b": data.folder(folder)}, {"a": 3, "b": 1})
    journal = tmp_path / "journal"
    book = LeaseBook(mix, journal=journal)
    names = []
    while found := book.grant(f"w{len(names)}"):
        names.append(found[1])
    assert Counter(names[:8]) == {"a": 6, "b": 2}
    assert not book.done
    write(folder / "20261124/09/y.parquet", [1, 2, 3])
    more = book.grant("w")
    assert more
    assert (more[1], more[2].path) == ("a", "20261124/09/y.parquet")
    book.close()
    again = LeaseBook(mix, journal=journal)
    assert again.grant("w") == more


def test_requests_without_end_leave_time_for_commits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of workers without a split ask each second: the place is listed a tenth of the time."""
    book = LeaseBook(data.folder(folder, follow=True))
    grow, asked, listed, now = book._data.grow, 0, 0, 1.0

    def slow() -> bool:
        nonlocal listed, now
        listed += 1
        now += 0.2
        return grow()

    monkeypatch.setattr(book._data, "grow", slow)
    monkeypatch.setattr(lease_book, "time", SimpleNamespace(monotonic=lambda: now))
    while book.grant(f"w{asked}"):
        asked += 1
    for _ in range(100):
        assert book.grant("more") is None
    assert listed == 1
    now += 1.9
    assert book.grant("more") is None
    assert listed == 2


def test_what_a_server_refuses(folder: Path) -> None:
    book = LeaseBook(data.folder(folder))
    with pytest.raises(SettingsError, match="16 characters"):
        data.LeaseServer(book, "short")
    with pytest.raises(SettingsError, match="without certificate="):
        data.LeaseServer(book, TOKEN, host="0.0.0.0")
    server = data.LeaseServer(book, TOKEN)
    with pytest.raises(UnauthorizedError, match="missing or wrong token"):
        next(iter(data.LeasedSplits(server.url, "another", data.folder(folder), worker="w")))
    wrong = httpx.post(f"{server.url}/v1/grant", json={}, headers={"authorization": f"Bearer {TOKEN}"})
    assert wrong.status_code == 422
    worker = data.LeasedSplits(server.url, TOKEN, data.folder(folder), worker="w", patience_s=0)
    batches = iter(worker)
    batch = next(batches)
    worker.give_back(batch.receipt)
    assert not worker.commit(batch.receipt)
    server.close()
    with pytest.raises(UnavailableError, match="the lease server does not answer"):
        worker.commit(batch.receipt)


@contextmanager
def process(*arguments: object, **more: Any) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.data.lease_process", *map(str, arguments)]
    one = subprocess.Popen(
        command, cwd=Path(__file__).parents[2], text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **more
    )
    try:
        yield one
    finally:
        one.kill()
        one.wait()


@pytest.mark.e2e
def test_killed_workers_and_a_killed_server_lose_and_double_nothing(folder: Path, tmp_path: Path) -> None:
    """kill -9 of two of three workers, and of the server while splits are leased; the test counts the samples."""
    journal, port, gate = tmp_path / "journal", free_ports(1), tmp_path / "gate"
    notes = [tmp_path / f"notes-{number}" for number in range(4)]
    url = f"http://127.0.0.1:{port}"

    def lines() -> list[list[str]]:
        return [line.split() for each in notes if each.exists() for line in each.read_text().splitlines()]

    def kept() -> int:
        return sum(line[0] == "kept" for line in lines())

    with process("work", folder, url, notes[2], "steady", 0.02, gate) as steady:
        with (
            process("serve", folder, journal, port),
            process("work", folder, url, notes[0], "first", 0.1, gate),
            process("work", folder, url, notes[1], "second", 0.1, gate),
        ):
            wait_for("each has used some batches, and has another", lambda: kept() >= 6)
        held = kept()
        gate.touch()
        with process("serve", folder, journal, port), process("work", folder, url, notes[3], "late", 0.02):
            wait_for(lambda: f"all is used: {kept()}", lambda: steady.poll() is not None, 150)
            assert steady.returncode == 0
    assert held < len(SAMPLES) / 3
    book = LeaseBook(data.folder(folder), journal=journal)
    assert book.done
    assert book.used == len(SAMPLES)
    # A worker that was killed after its commit was accepted has written no "kept": its read counts if the rows up to
    # there were not served under a higher token.
    reads = {
        (int(line[2]), int(line[3])): line
        for line in sorted(lines(), key=lambda each: int(each[1]))
        if line[0] == "read"
    }
    accepted = {(int(line[2]), int(line[3]), line[1]) for line in lines() if line[0] == "kept"}
    for split, upto, token in accepted:
        assert reads[split, upto][1] == token, "what was accepted was never served again"
    used = [sample for line in reads.values() for sample in map(int, line[4:])]
    assert Counter(used) == Counter(SAMPLES)
    assert ids([f"{each} x" for each in used]) == used
