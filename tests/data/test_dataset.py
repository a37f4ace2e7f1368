"""Batches of files: each sample once relative to the restored step, at any number of ranks."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import data
from holdfast.data.folder import FolderPlace
from holdfast.errors import SettingsError, UnavailableError
from tests.data.dataset_ranks import FORMATS, Ranks
from tests.data.files import ids, write


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four hours in each format, 23 samples each; the ids say the format and hour."""
    root = tmp_path_factory.mktemp("web")
    for kind, ending in enumerate(FORMATS):
        for hour in range(4):
            first = kind * 1000 + hour * 100
            write(
                root / ending / f"dt=2026-11-24/hour={hour:02}" / f"a.{ending}",
                list(range(first, first + 13)),
            )
            write(
                root / ending / f"dt=2026-11-24/hour={hour:02}" / f"b.{ending}",
                list(range(first + 13, first + 23)),
            )
    return root


def wanted(kind: int) -> list[int]:
    return [kind * 1000 + hour * 100 + at for hour in range(4) for at in range(23)]


@pytest.mark.parametrize("ending", FORMATS)
def test_each_sample_comes_once_per_epoch(web: Path, ending: str) -> None:
    """In every format, in another order in each epoch."""
    ranks = Ranks(data.folder(web / ending, window=2, shuffle=8), 2, epochs=2, batch=4)
    steps = []
    while step := ranks.step():
        steps += step
    assert Counter(steps) == Counter(wanted(FORMATS.index(ending)) * 2)
    half = len(steps) // 2
    assert sorted(steps[:half]) == sorted(steps[half:])
    assert steps[:half] != steps[half:]
    ranks.close()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=8),
    st.sampled_from([0, 5, 100]),
    st.integers(1, 4),
    st.booleans(),
)
def test_crashes_and_resizes_leave_each_sample_once(
    web: Path, lives: list[tuple[int, int, int]], shuffle: int, window: int, mixed: bool
) -> None:
    """Lives of some ranks: steps that are saved, then steps that are lost with the crash."""
    parts = {name: data.folder(web / name, window=window, shuffle=shuffle) for name in ("jsonl", "txt")}
    source: Any = data.mix(
        {
            name: data.Source(each.place, decode=ids, window=window, shuffle=shuffle)
            for name, each in parts.items()
        },
        weights={"jsonl": 0.7, "txt": 0.3},
    )
    kinds = [2, 3]
    if not mixed:
        source, kinds = parts["jsonl"], [2]
    used: list[int] = []
    state: Any = None

    def samples(rows: Sequence[Any]) -> list[int]:
        return [each if isinstance(each, int) else each["id"] for each in rows]

    for count, saved, lost in [*lives, (2, 1000, 0)]:
        ranks = Ranks(source, count, state)
        for _ in range(saved):
            step = [sample for one in ranks.each for sample in samples(next(one, []))]
            if not step:
                break
            used += step
        state = ranks.state
        for _ in range(lost):
            for one in ranks.each:
                next(one, None)
        ranks.close()
    whole = Ranks(source, 1)
    alone: list[int] = []
    for rows in whole.each[0]:
        alone += samples(rows)
    whole.close()
    assert used == alone, "the same order at any number of ranks"
    assert Counter(used) == Counter(sample for kind in kinds for sample in wanted(kind))


def test_a_step_can_be_asked_for_by_its_share(web: Path) -> None:
    """As session.share gives it, in parts for gradient accumulation."""
    source = data.folder(web / "jsonl", shuffle=16)
    [one] = Ranks(source, 1, batch=10).each
    steps = [ids(rows) for rows in one]
    [other] = Ranks(source, 1, batch=10).each
    assert ids(other.read(range(20, 24))) + ids(other.read(range(24, 30))) == steps[2]
    assert other.taken == 30
    assert ids(next(other)) == steps[3]
    with pytest.raises(SettingsError, match="within a batch of 10"):
        other.read(range(5, 15))
    with pytest.raises(SettingsError, match="the data ends after 92 samples"):
        other.read(range(90, 100))


def test_a_mix_with_a_source_that_repeats_has_an_end(tmp_path: Path) -> None:
    """The loop of the guide ends, when each sample of the others came once."""
    write(tmp_path / "web" / "a.jsonl", list(range(60)))
    write(tmp_path / "code" / "a.jsonl", [1000, 1001, 1002])
    mix = data.mix(
        {"web": data.folder(tmp_path / "web"), "code": data.folder(tmp_path / "code", repeat=True)},
        weights={"web": 0.7, "code": 0.3},
    )
    found = [each for rows in data.Dataset(mix, 8, lanes=4) for each in ids(rows)]
    assert sorted(each for each in found if each < 1000) == list(range(60))
    assert 15 < len(found) - 60 < 40
    with pytest.raises(SettingsError, match="epochs = 2: a source of the mix repeats: expected 1"):
        data.Dataset(mix, 8, epochs=2)
    data.Dataset(data.folder(tmp_path / "code", repeat=True), 8, epochs=2)


def test_a_place_that_did_not_answer_while_it_was_read_ahead_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers long before the rows are used: no rank ends for that."""
    monkeypatch.setattr("holdfast.data.reader.CHUNK", 10)
    for hour in range(6):
        write(tmp_path / f"dt=2026-11-24/hour={hour:02d}" / "a.jsonl", list(range(hour * 10, hour * 10 + 10)))
    dataset = data.Dataset(data.folder(tmp_path), 5, lanes=1, threads=1, patience_s=0)
    dataset.prepare()
    opened, failing = FolderPlace.open, {"hour=02", "hour=04"}

    def sometimes(place: FolderPlace, file: data.File) -> Any:
        """Fail for two files, once each: whichever thread opens one first."""
        for hour in [each for each in failing if each in file.path]:
            failing.remove(hour)
            raise UnavailableError("503 SlowDown")
        return opened(place, file)

    monkeypatch.setattr(FolderPlace, "open", sometimes)
    assert sorted(each for rows in dataset for each in ids(rows)) == list(range(60))
    assert not failing, "every failure was met"


def test_another_order_is_refused(web: Path) -> None:
    """Naming what differs."""
    state = Ranks(data.folder(web / "txt"), 1).state
    for wrong, options in (("seed", {"seed": 4}), ("lanes", {"lanes": 2})):
        with pytest.raises(SettingsError, match=f"{wrong} is .*, the restored position has"):
            Ranks(data.folder(web / "txt"), 1, state, **options)
    with pytest.raises(SettingsError, match="shuffle is 9, the restored position has 10000"):
        Ranks(data.folder(web / "txt", shuffle=9), 1, state)


def test_more_ranks_than_samples_at_the_end(tmp_path: Path) -> None:
    """Some ranks have no rows then, of the same kind; drop_last leaves that step out."""
    write(tmp_path / "a.parquet", list(range(14)))
    ranks = Ranks(data.folder(tmp_path), 4)
    ranks.step()
    assert [next(one).num_rows for one in ranks.each] == [0, 1, 0, 1]
    assert ranks.step() == []
    dropping = Ranks(data.folder(tmp_path), 4, drop_last=True)
    assert len(dropping.step()) == 12
    assert dropping.step() == []


def test_lines_are_read_as_a_file_gives_them(tmp_path: Path) -> None:
    """Blank ones, other ends of lines, no end at the last; compressed too."""
    content = "one\r\n\ntwo \u2028 half\x0bx\nlast".encode()
    (tmp_path / "a.txt").write_bytes(content)
    with gzip.open(tmp_path / "b.txt.gz", "wb") as file:
        file.write(content)
    (tmp_path / "c.txt").write_bytes(b"")
    rows = next(data.Dataset(data.folder(tmp_path, shuffle=0), 100, lanes=1))
    assert rows == ["one\r\n", "\n", "two \u2028 half\x0bx\n", "last"] * 2


def test_each_split_is_read_once(web: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those that two lanes share: memory holds what is needed again."""
    opened: Counter[str] = Counter()
    real = FolderPlace.open

    def count(self: FolderPlace, file: data.File) -> Any:
        opened[file.path] += 1
        return real(self, file)

    dataset = data.Dataset(data.folder(web / "parquet", shuffle=8, window=4), 8, lanes=4, threads=1)
    dataset.prepare()
    splits = len(dataset.splits())
    monkeypatch.setattr(FolderPlace, "open", count)
    assert sum(len(rows) for rows in dataset) == 92
    assert splits <= sum(opened.values()) <= splits + 4
