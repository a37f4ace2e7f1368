"""Places that do not answer for a time: ranks wait, as long as they are set to, and no longer."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import pytest

from holdfast import data
from holdfast.data import http_listing, patience
from holdfast.data.folder import FolderPlace
from holdfast.data.http_listing import HttpPlace
from holdfast.data.patience import PlacePatience
from holdfast.data.ranges import RangeFile
from holdfast.errors import SettingsError, UnavailableError
from tests.data.files import ids, write


class Faked(PlacePatience):
    """By a clock of its own: no test waits."""

    def __init__(self, seconds: float) -> None:
        self.at = 0.0
        self.paused: list[float] = []
        super().__init__(seconds, lambda: self.at)

    def _paused(self, seconds: float) -> bool:
        self.at += seconds
        self.paused.append(seconds)
        return True


class Store(FolderPlace):
    """A folder behind a network that answers when it is there, read by ranges."""

    asked = 0
    away = 0
    """So many of the next questions are not answered."""

    @staticmethod
    def question() -> None:
        Store.asked += 1
        if Store.away:
            Store.away -= 1
            raise UnavailableError("the store answered 503")

    def files(self) -> Iterator[data.File]:
        self.question()
        yield from super().files()

    def open(self, file: data.File) -> BinaryIO:
        whole = (Path(self.name) / file.path).read_bytes()

        def bring(start: int, stop: int) -> bytes:
            self.question()
            return whole[start:stop]

        return io.BufferedReader(RangeFile(len(whole), bring), 64)  # type: ignore[return-value]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    for hour in range(6):
        numbers = list(range(hour * 10, hour * 10 + 10))
        write(tmp_path / f"dt=2026-11-24/hour={hour:02d}" / f"a.{('parquet', 'arrow')[hour % 2]}", numbers)
    monkeypatch.setattr("holdfast.data.reader.CHUNK", 10)
    monkeypatch.setattr("holdfast.data.reader.LOOK_S", 0.001)
    monkeypatch.setattr(patience, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(patience, "LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr(Store, "away", 0)
    return Store(str(tmp_path))


def test_an_outage_of_a_minute_is_waited_for() -> None:
    """With pauses that grow; the answer is used when it comes."""
    asked = Faked(600)

    def question() -> str:
        if asked.at < 60:
            raise UnavailableError("503")
        return "rows"

    assert asked.ask(question) == "rows"
    assert 60 <= asked.at < 75
    assert asked.paused[:4] == [0.2, 0.4, 0.8, 1.6]
    assert max(asked.paused) <= patience.LONGEST_PAUSE_S
    assert not asked.away


@pytest.mark.parametrize("seconds", [0.5, 60.0, 601.5])
def test_it_is_waited_for_as_long_as_is_set(seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    """To the second; the message has the place, the time, and the argument."""
    asked = Faked(seconds)

    def question() -> None:
        assert asked.at <= seconds
        raise UnavailableError("s3://b/x/: S3 answered 503")

    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(UnavailableError, match=rf"^s3://b/x/: S3 answered 503\. It was .* = {seconds:g}\)"),
    ):
        asked.ask(question)
    assert asked.at == pytest.approx(seconds)
    assert [each.getMessage() for each in caplog.records] == [
        f"s3://b/x/: S3 answered 503. It is asked again for {seconds:g} s (patience_s)"
    ]


def test_an_error_that_does_not_pass_is_none_to_wait_for() -> None:
    """Neither is anything without patience."""
    for asked, error in ((Faked(600), SettingsError("wrong")), (Faked(0), UnavailableError("503"))):

        def question(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error), match=str(error)):
            asked.ask(question)
        assert asked.paused == []


def test_a_store_that_goes_away_costs_no_row(store: Store) -> None:
    """While the ends of files are read, and at each range of the rows after that; a first listing fails at once."""
    listed = Store.files

    def lists_first(place: Store) -> Iterator[data.File]:
        yield from listed(place)
        Store.away = 3

    for when in range(3):
        dataset = data.Dataset(data.source(store), 5, lanes=1, threads=2)
        Store.away = 1
        with pytest.raises(UnavailableError, match=r"^the store answered 503$"):
            dataset.prepare()
        found: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Store, "files", lists_first)
            dataset.prepare()
        for rows in dataset:
            found += ids(rows)
            Store.away = when  # of the reads that follow
        assert sorted(found) == list(range(60))
        dataset.close()


def test_new_files_are_looked_for_again(store: Store) -> None:
    """A run that is followed and came to its end."""
    dataset = data.Dataset(data.source(store, follow=True), 60, lanes=1, poll_s=0)
    next(dataset)
    write(Path(store.name) / "dt=2026-11-24/hour=07/a.parquet", list(range(60, 120)))
    Store.away = 5
    assert sorted(ids(next(dataset))) == list(range(60, 120))
    assert Store.away == 0
    dataset.close()


def test_the_step_waits_inside_of_what_is_given_for_it(store: Store) -> None:
    """So that the silence is no hang; not while rows come from what was read ahead."""
    inside: list[str] = []

    @contextmanager
    def waiting() -> Iterator[None]:
        inside.append("in")
        yield
        inside.append("out")

    dataset = data.Dataset(data.source(store), 10, lanes=1, threads=1, waiting=waiting)
    dataset.prepare()
    assert inside == []
    Store.away = 20
    next(dataset)
    assert inside == ["in", "out"]
    assert Store.away == 0
    dataset.close()


def test_what_stays_away_ends_the_rank_with_a_message(store: Store) -> None:
    """And may be asked again after that."""
    dataset = data.Dataset(data.source(store), 10, lanes=1, threads=1, patience_s=0.05)
    dataset.prepare()
    Store.away = 1_000_000
    with pytest.raises(UnavailableError, match=r"the store answered 503\. It was asked .*patience_s = 0\.05"):
        next(dataset)
    Store.away = 0
    assert len(next(dataset)) == 10
    dataset.close()
    with pytest.raises(SettingsError, match="patience_s = -1"):
        data.Dataset(data.source(store), 10, patience_s=-1)


def test_a_process_ends_though_its_threads_wait(tmp_path: Path) -> None:
    """Its exit waits for the threads that read: they see that there is no one to read for."""
    write(tmp_path / "a.jsonl", list(range(10)))
    script = f"""
from holdfast import data
from holdfast.data.folder import FolderPlace
from holdfast.errors import UnavailableError
def away(*_):
    raise UnavailableError("503")
dataset = data.Dataset(data.folder({str(tmp_path)!r}), 5)
dataset.prepare()
FolderPlace.open = away
dataset._reading()._begin(0, 0, 5)
while not dataset._reading()._patience.away: pass
raise SystemExit(7)
"""
    ended = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert ended.returncode == 7


@pytest.mark.parametrize("status", [408, 429, 503])
def test_a_server_that_wants_to_be_asked_later_is_away(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no error of the file."""
    client = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(status)))
    monkeypatch.setattr(http_listing, "_client_of", lambda _: client)
    place: Any = HttpPlace("http://data/x/")
    with pytest.raises(UnavailableError, match=rf"status {status}"):
        list(place.files())
