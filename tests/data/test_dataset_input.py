"""Folders, files and columns of a data set that cannot be read or do not fit: one clear message each."""

from __future__ import annotations

import errno
import gzip
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import data
from holdfast.data import formats
from holdfast.data.folder import FolderPlace
from holdfast.errors import SettingsError, SourceError
from tests.data.dataset_ranks import FORMATS, Ranks
from tests.data.files import ids, write


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


def test_a_name_without_a_file_is_refused(tmp_path: Path) -> None:
    """A link to a share that is not mounted left its samples out; a pipe waited for a writer, for ever."""
    write(tmp_path / "a.txt", [1])
    other = tmp_path / "b.txt"
    for target, reason in (
        ("/nowhere/b.txt", "a link to nothing: /nowhere/b.txt"),
        ("b.txt", "cannot be read: Too many"),
    ):
        other.symlink_to(target)
        with pytest.raises(SourceError, match=rf"/b\.txt: {reason}"):
            list(FolderPlace(str(tmp_path)).files())
        other.unlink()
    os.mkfifo(other)
    with pytest.raises(SourceError, match=r"/b\.txt: no regular file"):
        list(FolderPlace(str(tmp_path)).files())


def test_damaged_bytes_are_named_with_their_file(tmp_path: Path) -> None:
    """The libraries' own errors do not name the place."""
    for ending, reason in (
        ("parquet", "row group 0 cannot be read"),
        ("arrow", "record batch 0 cannot be read"),
    ):
        path = write(tmp_path / ending / f"a.{ending}", list(range(7)))
        whole = path.read_bytes()
        size = 100 if ending == "parquet" else 300
        path.write_bytes(whole[:8] + b"\xa5" * size + whole[8 + size :])
        with pytest.raises(SourceError, match=rf"/a\.{ending}: {reason}: "):
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
    message = rf"/b\.{ending}: no column 'label', which .*/a\.{ending} has: .*optional="
    with pytest.raises(SourceError, match=message):
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


def test_types_that_do_not_go_together_are_one_clear_message(tmp_path: Path) -> None:
    """A column that is a number in one file and text in another."""
    pq.write_table(pa.table({"id": [1, 2, 3]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": ["x", "y", "z"]}), tmp_path / "b.parquet")
    with pytest.raises(
        SourceError, match=r"/b\.parquet: its columns do not go together with .*/a\.parquet: .*id.*decode="
    ):
        data.Dataset(data.folder(tmp_path), 6, lanes=1).prepare()
    both = {
        name: data.folder(tmp_path, where=lambda file, n=name: file.path == f"{n}.parquet") for name in "ab"
    }
    with pytest.raises(SettingsError, match=r"do not go together.*id.*decode="):
        list(data.Dataset(data.mix(both), 6, lanes=1))


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_types_are_compared_before_the_first_step(tmp_path: Path, ending: str) -> None:
    """A number that may be missing is written as a float by some, and came up where a batch had rows of both."""
    for name, column in (("a", [1, 2, 3]), ("b", [1.0, None, 3.0]), ("c", pa.nulls(3))):
        table = pa.table({"id": [1, 2, 3], "label": column})
        if ending == "parquet":
            pq.write_table(table, tmp_path / f"{name}.parquet")
        else:
            with pa.ipc.new_file(tmp_path / f"{name}.arrow", table.schema) as sink:
                sink.write_table(table)
    with pytest.raises(
        SourceError, match=rf"/b\.{ending}: its columns do not go together with .*/a\.{ending}"
    ):
        data.Dataset(data.folder(tmp_path), 9).prepare()

    def alike(rows: Any) -> Any:
        return rows.set_column(1, "label", rows.column("label").cast(pa.float64()))

    rows = next(data.Dataset(data.folder(tmp_path, decode=alike), 9))
    assert sorted(rows.column("label").to_pylist(), key=str) == [
        1.0,
        1.0,
        2.0,
        3.0,
        3.0,
        None,
        None,
        None,
        None,
    ]
    nulls = data.folder(tmp_path, where=lambda file: not file.path.startswith("b"))
    assert len(next(data.Dataset(nulls, 6))) == 6
    if ending == "parquet":
        assert len(next(data.Dataset(data.folder(tmp_path, columns=["id"]), 9))) == 9


def test_a_name_that_stands_twice_is_no_other_type(tmp_path: Path) -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], names=["id", "id"])
    for name in "ab":
        pq.write_table(twice, tmp_path / f"{name}.parquet")
    assert len(next(data.Dataset(data.folder(tmp_path), 2))) == 2


def test_values_of_a_wrong_line_are_refused(tmp_path: Path) -> None:
    """Also where they would go together as others."""
    for text in ('{"a": 1}\n\n', "[1\n2]\n", "1, 2\n3\n"):
        (tmp_path / "a.jsonl").write_text(text)
        with pytest.raises(
            SourceError, match=r"a\.jsonl: (line \d after byte 0 is no JSON|a line .* more than one value)"
        ):
            next(data.Dataset(data.folder(tmp_path), 1))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 100_000 + "]" * 100_000, id="too deep"),
        "1, 2\n[3\n4]\n",
        '{"a": 1}, {"a": 2}\n{"a": [{}\n{}]}\n',
        "1],[2\n[[3\n4]]\n",
        '{"a": 1}x',
        "\n",
    ],
)
def test_broken_lines_never_make_up_for_each_other(tmp_path: Path, text: str) -> None:
    """Parsed together, a line with two values and one that is cut in two are as many values as lines."""
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(SourceError, match=r"a\.jsonl: line \d after byte 0 is no JSON"):
        next(data.Dataset(data.folder(tmp_path), 1))


def test_white_space_around_a_value_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b' {"a": 1}\t\r\n\t{"a": 2} \n{"a": 3}')
    source = data.folder(tmp_path, shuffle=0)
    assert [rows[0]["a"] for rows in data.Dataset(source, 1, lanes=1)] == [1, 2, 3]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize("size", [3, 4, 5, 1000])
def test_lines_that_are_no_json_at_a_glance_are_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, size: int
) -> None:
    """An empty one, or a byte order mark: a run of weeks would end where it comes to them."""
    monkeypatch.setattr(formats, "LINES_NBYTES", size)
    pack = gzip.compress if name.endswith("gz") else bytes
    for text, reason in (
        (b"1\n2\n\n3\n", "line 3 after byte 0 is no JSON: it is empty"),
        (b"\n1\n", "line 1 after byte 0 is no JSON: it is empty"),
        (b"12\n\n", "line 2 after byte 0 is no JSON: it is empty"),
        (b"\xef\xbb\xbf1\n", "begins with a byte order mark"),
    ):
        (tmp_path / name).write_bytes(pack(text))
        with pytest.raises(SourceError, match=reason):
            data.Dataset(data.folder(tmp_path), 1).prepare()


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("shuffle", [0, 30])
def test_short_dictionaries_and_views_are_shuffled(tmp_path: Path, kind: str, shuffle: int) -> None:
    """Categories of pandas count in one byte, and files have other ones; views are what polars writes."""
    short = pa.dictionary(pa.int8(), pa.string())
    for number in range(3):
        values = [f"{number}-{each}" for each in range(100)]
        coded = pa.array(values).dictionary_encode().cast(short)
        table = pa.table(
            {
                "id": range(100 * number, 100 * number + 100),
                "category": coded,
                "view": pa.array(values, pa.string_view()),
                "struct": pa.StructArray.from_arrays([coded], ["category"]),
                "list": pa.array([[each] for each in values], pa.list_(pa.string_view())),
            }
        )
        if kind == "parquet":
            pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=40)
        else:
            with pa.ipc.new_file(tmp_path / f"{number}.arrow", table.schema) as sink:
                sink.write_table(table)
    dataset = data.Dataset(data.folder(tmp_path, shuffle=shuffle), 30, lanes=2)
    rows = [row for table in dataset for row in table.to_pylist()]
    dataset.close()
    assert sorted(row["id"] for row in rows) == list(range(300))
    for row in rows:
        value = f"{row['id'] // 100}-{row['id'] % 100}"
        assert (row["category"], row["view"]) == (value, value)
        assert (row["struct"], row["list"]) == ({"category": value}, [value])


@pytest.mark.parametrize(
    ("ending", "part"),
    [
        ("parquet", r"row group 1 \(7 rows\)"),
        ("arrow", r"record batch 1"),
        ("jsonl", r"the 20 lines from byte 0 on"),
    ],
)
def test_a_sample_that_decode_cannot_take_is_named_with_its_file(
    tmp_path: Path, ending: str, part: str
) -> None:
    """The error stays the script's own: its kind, and its place in the script, decide on how the job is recovered."""
    write(tmp_path / f"a.{ending}", list(range(20)))

    def decode(rows: Any) -> Any:
        if 9 in ids(rows):
            raise ZeroDivisionError("sample 9")
        return rows

    with pytest.raises(ZeroDivisionError, match="sample 9") as raised:
        list(data.Dataset(data.folder(tmp_path, decode=decode, shuffle=0), 4, lanes=1))
    [note] = raised.value.__notes__
    assert re.search(rf"decode= for .*/a\.{ending}, {part}", note)
