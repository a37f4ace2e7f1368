"""Batches of files: each sample once relative to the restored step, at any number of ranks."""

from __future__ import annotations

import errno
import gzip
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import data
from holdfast.data.folder import FolderPlace
from holdfast.errors import SettingsError, SourceError, UnavailableError
from tests.data.files import ids, write

FORMATS = ("parquet", "arrow", "jsonl", "txt")


class Ranks:
    """Data sets of several ranks in one process; each lists for itself, and finds the same."""

    def __init__(self, source: Any, count: int, state: Any = None, **options: Any) -> None:
        given = {"batch": 12, "lanes": 4, "seed": 3, "poll_s": 0.01, "threads": 1, **options}
        self.each = [data.Dataset(source, rank=rank, ranks=count, **given) for rank in range(count)]
        for one in self.each:
            if state is not None:
                one.load_state_dict(state)

    def step(self) -> list[int]:
        return [sample for one in self.each for sample in ids(next(one, []))]

    @property
    def state(self) -> dict[str, Any]:
        found = [one.state_dict() for one in self.each]
        assert all(one == found[0] for one in found), "equal on all ranks: saved once, loaded at any number"
        return found[0]

    def close(self) -> None:
        for one in self.each:
            one.close()


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

    def told(rows: Sequence[Any]) -> list[int]:
        return [each if isinstance(each, int) else each["id"] for each in rows]

    for count, saved, lost in [*lives, (2, 1000, 0)]:
        ranks = Ranks(source, count, state)
        for _ in range(saved):
            step = [sample for one in ranks.each for sample in told(next(one, []))]
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
        alone += told(rows)
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


def test_new_partitions_are_noticed_and_join_the_order(tmp_path: Path) -> None:
    """A batch run that goes over into a stream; after a restore the order is that of the saved listing."""
    write(tmp_path / "2026/11/24/00/a.jsonl", list(range(30)))
    source = data.folder(tmp_path, follow=True, shuffle=4)
    ranks = Ranks(source, 2)
    used = ranks.step() + ranks.step()
    write(tmp_path / "2026/11/24/01/a.jsonl", list(range(100, 130)))
    before = ranks.state
    first = ranks.step()
    state = ranks.state
    ranks.close()
    write(tmp_path / "2026/11/24/01/b.jsonl", list(range(200, 214)))
    write(tmp_path / "2026/11/23/09/late.jsonl", list(range(300, 310)))
    again = Ranks(source, 3, state)
    more = [sample for _ in range(4) for sample in again.step()]
    again.close()
    assert Counter(used + first + more) == Counter(
        [*range(30), *range(100, 130), *range(200, 214), *range(300, 310)]
    )
    from_before = Ranks(source, 1, before)
    known = [[each for each in step if each < 30] for step in (from_before.step(), first)]
    assert known[0] == known[1], (
        "what was listed when it was saved comes as it did; only what follows may differ"
    )
    from_before.close()


def test_a_finished_run_goes_over_into_a_stream(tmp_path: Path) -> None:
    """Its position, of a run without follow, holds in the run with it."""
    write(tmp_path / "2026-11-24/00/a.txt", list(range(24)))
    finite = Ranks(data.folder(tmp_path), 2)
    used = finite.step() + finite.step()
    assert finite.step() == []
    write(tmp_path / "2026-11-24/01/a.txt", list(range(50, 62)))
    stream = Ranks(data.folder(tmp_path, follow=True), 3, finite.state)
    assert sorted(used + stream.step()) == [*range(24), *range(50, 62)]


def test_a_partition_counts_when_all_sources_have_it(tmp_path: Path) -> None:
    for hour, names in enumerate([("web", "code"), ("web",), ("code", "web"), ("code",)]):
        for name in names:
            start = 1000 * (name == "code") + hour * 10
            write(tmp_path / name / f"20261124/{hour:02}/x.txt", list(range(start, start + 3)))
    source = data.mix(data.align({name: data.folder(tmp_path / name) for name in ("web", "code")}))
    [one] = Ranks(source, 1).each
    assert sorted(sample for rows in one for sample in ids(rows)) == [
        *range(3),
        *range(20, 23),
        *range(1000, 1003),
        *range(1020, 1023),
    ]


def test_aligned_sources_that_are_followed_wait_for_one_another(tmp_path: Path) -> None:
    """A partition that came to one of them first counts from when the other has it, too."""
    write(tmp_path / "a/20261124/00/x.txt", [1, 2])
    write(tmp_path / "b/20261124/00/x.txt", [101, 102])
    write(tmp_path / "a/20261124/01/x.txt", [3, 4])
    source = data.mix(data.align({name: data.folder(tmp_path / name, follow=True) for name in "ab"}))
    [one] = Ranks(source, 1, batch=4, lanes=1).each
    assert sorted(ids(next(one))) == [1, 2, 101, 102]
    assert not one.grow()
    write(tmp_path / "b/20261124/01/x.txt", [103, 104])
    assert sorted(ids(next(one))) == [3, 4, 103, 104]


def test_filters_and_closed_partitions(tmp_path: Path) -> None:
    for day in (23, 24, 25):
        write(tmp_path / f"dt=2026-11-{day}" / "x.txt", [day])
    write(tmp_path / "_temporary" / "x.txt", [1])
    between = data.folder(tmp_path, where=data.between("2026-11-24", "2026-11-25"))
    assert Ranks(between, 1).step() == [24]
    assert sorted(Ranks(data.folder(tmp_path, only_closed=True), 1).step()) == [23, 24]


def test_days_count_as_a_whole_where_they_are_the_partitions(tmp_path: Path) -> None:
    """Hours in the paths or not: a day is closed by the next one, and two sources have it once both have a part."""
    for name, day, hour in (("a", 24, 5), ("a", 24, 6), ("a", 25, 1), ("b", 24, 7)):
        write(tmp_path / name / f"dt=2026-11-{day}/hour={hour:02}/x.txt", [day * 100 + hour])
    write(tmp_path / "a/dt=2026-11-25/hour=02/x.txt", [2502])
    only = data.folder(tmp_path / "a", by="day", only_closed=True)
    assert sorted(Ranks(only, 1).step()) == [2405, 2406]
    both = data.align({name: data.folder(tmp_path / name, by="day") for name in "ab"})
    assert sorted(Ranks(data.mix(both), 1).step()) == [2405, 2406, 2407]


def test_a_folder_that_cannot_be_read_is_no_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share that answers for some of its folders only: training on the others would leave data out."""
    for hour in range(2):
        write(tmp_path / f"20261124/{hour:02}/x.txt", [hour])
    scan = os.scandir

    def torn(path: Any) -> Any:
        if str(path).endswith("/01"):
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", torn)
    with pytest.raises(SourceError, match=r"/20261124/01: cannot be listed: Stale file handle"):
        list(FolderPlace(str(tmp_path)).files())


def test_a_link_to_a_folder_above_is_refused(tmp_path: Path) -> None:
    """Its files would come some forty times; a link to another folder is followed."""
    write(tmp_path / "web/20261124/00/x.txt", [1])
    write(tmp_path / "other/y.txt", [2])
    (tmp_path / "web/other").symlink_to(tmp_path / "other")
    place = FolderPlace(str(tmp_path / "web"))
    assert sorted(each.path for each in place.files()) == ["20261124/00/x.txt", "other/y.txt"]
    (tmp_path / "other/back").symlink_to(tmp_path / "web")
    with pytest.raises(SourceError, match=r"/web/other/back: a link to a folder that it is in: .*/web$"):
        list(place.files())


def test_damaged_bytes_are_named_with_their_file(tmp_path: Path) -> None:
    """What the libraries raise says nothing of where."""
    for ending, told in (
        ("parquet", "row group 0 cannot be read"),
        ("arrow", "record batch 0 cannot be read"),
    ):
        path = write(tmp_path / ending / f"a.{ending}", list(range(7)))
        whole = path.read_bytes()
        size = 100 if ending == "parquet" else 300
        path.write_bytes(whole[:8] + b"\xa5" * size + whole[8 + size :])
        with pytest.raises(SourceError, match=rf"/a\.{ending}: {told}: "):
            list(data.Dataset(data.folder(path.parent), 7))
    zipped = gzip.compress(b"one\ntwo\n" * 1000)
    (tmp_path / "lines").mkdir()
    for wrong in (zipped[:-12], zipped[:20] + b"\xa5\x5a" * 10 + zipped[40:], b"no gzip"):
        (tmp_path / "lines/a.txt.gz").write_bytes(wrong)
        with pytest.raises(SourceError, match=r"/a\.txt\.gz: damaged or cut off \(gzip\): "):
            data.Dataset(data.folder(tmp_path / "lines"), 7).prepare()


def test_a_column_that_a_file_has_not_is_refused(tmp_path: Path) -> None:
    """Rows would come without it."""
    write(tmp_path / "a.parquet", [1, 2])
    assert next(data.Dataset(data.folder(tmp_path, columns=["id"]), 2)).column_names == ["id"]
    with pytest.raises(SourceError, match=r"/a\.parquet: no column 'label'; it has id, text"):
        data.Dataset(data.folder(tmp_path, columns=["id", "label"]), 2).prepare()


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_column_that_the_first_file_has_is_wanted_of_all(tmp_path: Path, ending: str) -> None:
    """Rows without it would have nulls there, or none of it in a batch of their own."""
    write(tmp_path / f"b.{ending}", [1, 2, 3])
    labelled(tmp_path / f"a.{ending}", [4, 5, 6])
    told = rf"/b\.{ending}: no column 'label', which .*/a\.{ending} has: .*optional="
    with pytest.raises(SourceError, match=told):
        data.Dataset(data.folder(tmp_path), 2).prepare()
    dataset = data.Dataset(data.folder(tmp_path, optional=["label"], shuffle=0), 3, lanes=1)
    assert [rows.column("label").to_pylist() for rows in dataset] == [[4, 5, 6], [None] * 3]
    whole = data.Dataset(data.folder(tmp_path, optional=["label"]), 6, lanes=1)
    assert sorted(next(whole).column("label").to_pylist(), key=str) == [4, 5, 6, None, None, None]
    with pytest.raises(SettingsError, match="optional = 'label': expected a list"):
        data.folder(tmp_path, optional="label")


def test_columns_that_are_asked_for_may_be_optional(tmp_path: Path) -> None:
    """Others are refused where they lack, and what is not asked for lacks nowhere."""
    write(tmp_path / "b.parquet", [1, 2, 3])
    labelled(tmp_path / "a.parquet", [4, 5, 6])
    rows = next(data.Dataset(data.folder(tmp_path, columns=["id"]), 6))
    assert rows.column_names == ["id"]
    both = data.folder(tmp_path, columns=["id", "label"], optional=["label", "other"], shuffle=0)
    rows = next(data.Dataset(both, 6, lanes=1))
    assert rows.to_pydict() == {"id": [4, 5, 6, 1, 2, 3], "label": [4, 5, 6, None, None, None]}


def test_a_new_file_is_judged_by_the_first_that_was_listed(tmp_path: Path) -> None:
    """Also by a run that goes on; a first file that is gone by then leaves the new ones to be judged by each other."""
    labelled(tmp_path / "dt=2026-11-24/hour=00/a.parquet", [1, 2])
    source = data.folder(tmp_path, follow=True)
    dataset = data.Dataset(source, 2, lanes=1, poll_s=0)
    next(dataset)
    saved = dataset.state_dict()
    write(tmp_path / "dt=2026-11-24/hour=01/b.parquet", [3, 4])
    resumed = data.Dataset(source, 2, lanes=1, poll_s=0)
    resumed.load_state_dict(saved)
    for each in (dataset, resumed):
        with pytest.raises(SourceError, match=r"b\.parquet: no column 'label', which .*a\.parquet has"):
            next(each)
    (tmp_path / "dt=2026-11-24/hour=00/a.parquet").unlink()
    assert sorted(ids(next(resumed))) == [3, 4]
    labelled(tmp_path / "dt=2026-11-24/hour=02/c.parquet", [5, 6])
    assert sorted(ids(next(resumed))) == [5, 6]


def labelled(path: Path, numbers: list[int]) -> None:
    """A file with another column."""
    table = pa.table({"id": numbers, "text": ["x"] * len(numbers), "label": numbers})
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as sink:
            sink.write_table(table)


def test_a_source_of_a_mix_without_samples_is_refused(tmp_path: Path) -> None:
    """Else the others would be taken in its place; a saved position in which it had none goes on as it was."""
    write(tmp_path / "web/20261124/00/x.txt", [1, 2, 3])
    (tmp_path / "code").mkdir()
    sources = {name: data.folder(tmp_path / name) for name in ("web", "code")}
    dataset = data.Dataset(data.mix(sources), 1)
    for _ in range(2):
        with pytest.raises(SettingsError, match=r"^code: .*/code: no sample in any file that counts"):
            dataset.prepare()
    again = data.Dataset(data.mix(sources), 1)
    again.load_state_dict(dataset.state_dict())
    assert sorted(sample for rows in again for sample in ids(rows)) == [1, 2, 3]
    again.close()
    followed = {**sources, "code": data.folder(tmp_path / "code", follow=True)}
    data.Dataset(data.mix(followed), 1).prepare()


def test_bad_input_is_one_clear_message(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"/nowhere: no such folder"):
        next(data.Dataset(data.folder("/nowhere"), 1))
    with pytest.raises(SettingsError, match="no sample in any file"):
        next(data.Dataset(data.folder(tmp_path), 1))
    write(tmp_path / "a.xyz", [1])
    with pytest.raises(SettingsError, match=r"/a\.xyz: unknown format .* expected one of parquet, arrow"):
        next(data.Dataset(data.folder(tmp_path), 1))
    (tmp_path / "a.xyz").rename(tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"/a\.parquet: no Parquet file"):
        next(data.Dataset(data.folder(tmp_path), 1))
    (tmp_path / "a.parquet").rename(tmp_path / "a.jsonl")
    with pytest.raises(SourceError, match=r"/a\.jsonl: line 1 after byte 0 is no JSON"):
        next(data.Dataset(data.folder(tmp_path), 1))
    with pytest.raises(SettingsError, match="format = 'csv': expected one of"):
        data.folder(tmp_path, format="csv")
    for wrong in ("yesterday", "2026-11-24T05:00+00:00"):
        with pytest.raises(SettingsError, match=f"between\\('{wrong[:9]}.*without a time zone"):
            data.between(wrong, "2026-11-25")
    with pytest.raises(SettingsError, match="weights: code: expected one for each of web"):
        data.mix({"web": data.folder(tmp_path)}, {"web": 1, "code": 1})
    with pytest.raises(SettingsError, match="align: b: follow = False beside"):
        data.align({"a": data.folder(tmp_path, follow=True), "b": data.folder(tmp_path)})
    with pytest.raises(SettingsError, match="batch = 0"):
        data.Dataset(data.folder(tmp_path), 0)
    with pytest.raises(SettingsError, match="no package has a place for gs://"):
        data.source("gs://bucket/x")


@pytest.mark.parametrize("ending", FORMATS)
def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path, ending: str) -> None:
    """Another size, or the same size at another time; gone altogether."""
    for name in "ab":
        write(tmp_path / f"{name}.{ending}", list(range(20)))
    ranks = Ranks(data.folder(tmp_path, shuffle=0), 1, lanes=1, batch=2)
    ranks.step()
    state = ranks.state
    changed = tmp_path / f"b.{ending}"
    status = changed.stat()
    os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(
        SourceError, match=rf"/b\.{ending} is not the file that was listed: it has \d+ bytes and version"
    ):
        for _ in Ranks(data.folder(tmp_path, shuffle=0), 1, state, lanes=1, batch=2).each[0]:
            pass
    changed.unlink()
    with pytest.raises(SourceError, match=rf"/b\.{ending} is not the file that was listed: No such file"):
        for _ in Ranks(data.folder(tmp_path, shuffle=0), 1, state, lanes=1, batch=2).each[0]:
            pass


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


def test_types_that_do_not_go_together_are_one_clear_message(tmp_path: Path) -> None:
    """A column that is a number in one file and text in another."""
    pq.write_table(pa.table({"id": [1, 2, 3]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": ["x", "y", "z"]}), tmp_path / "b.parquet")
    with pytest.raises(SettingsError, match=r"do not go together.*id.*decode="):
        list(data.Dataset(data.folder(tmp_path), 6, lanes=1))


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


def test_values_of_a_wrong_line_are_refused(tmp_path: Path) -> None:
    """Also where they would go together as others."""
    for text in ('{"a": 1}\n\n', "[1\n2]\n", "1, 2\n3\n"):
        (tmp_path / "a.jsonl").write_text(text)
        with pytest.raises(
            SourceError, match=r"a\.jsonl: (line \d after byte 0 is no JSON|a line .* more than one value)"
        ):
            next(data.Dataset(data.folder(tmp_path), 1))


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
