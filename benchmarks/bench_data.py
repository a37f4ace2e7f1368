"""How fast training data is read, beside plain reading of the same files."""

from __future__ import annotations

import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.table import Row
from holdfast import data

FILES, SAMPLES, BATCH, GROUP = 8, 12_000, 512, 4_000
SHUFFLE = 4_000
NOTES = (
    f"reading {FILES * SAMPLES} documents of 1.8 kB ({FILES} files, in the page cache) in batches of {BATCH}, in one "
    "process, files listed before. Beside it pyarrow (row groups, cut into batches) and Python (lines of a file, "
    "json.loads), in turn. In order: shuffle=0, one lane. Shuffled: blocks of "
    f"{SHUFFLE}; beside it as many rows at a time, shuffled. Holdfast reads ahead in threads; processor "
    "time is that of all threads.",
)


def run(n: int) -> list[Row]:
    """Rows for each format, in order and shuffled."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder))
        for kind, plain in (("parquet", _tables), ("jsonl", _values), ("lines", _lines)):
            where = Path(folder) / ("jsonl" if kind == "lines" else kind)
            for order, shuffle in (("in order", 0), ("shuffled", SHUFFLE)):
                source = data.folder(where, format=kind, shuffle=shuffle)
                ours, beside = [], []
                for _ in range(max(3, n)):
                    beside.append(
                        _timed(lambda plain=plain, where=where, shuffle=shuffle: plain(where, shuffle))
                    )  # type: ignore[misc]
                    ours.append(_ours(source))
                for at, clock in enumerate(("time", "processor time")):
                    mine, theirs = [each[at] for each in ours], [each[at] for each in beside]
                    name = f"reading {kind}, {order}, {clock}"
                    notes = () if rows else NOTES
                    rows.append(Row(name, "us a sample", mine, None, {"plain": theirs}, 1 / 0.9, notes))
                    print(f"  {name}: {min(mine):.2f} us, plain {min(theirs):.2f} us", flush=True)
    return rows


def _ours(source: data.Source) -> tuple[float, float]:
    dataset = data.Dataset(source, BATCH, lanes=1, threads=2)
    dataset.prepare()
    found = _timed(lambda: dataset)
    dataset.close()
    return found


def _timed(batches: Callable[[], Iterator[object]]) -> tuple[float, float]:
    """Microseconds a sample: by the clock, and of the processors."""
    gc.collect()
    began, used = time.perf_counter(), time.process_time()
    count = sum(map(len, batches()))  # type: ignore[arg-type]
    assert count == FILES * SAMPLES
    return (time.perf_counter() - began) / count * 1e6, (time.process_time() - used) / count * 1e6


def _tables(folder: Path, shuffle: int) -> Iterator[pa.Table]:
    drawn = np.random.default_rng(1)
    for path in sorted(folder.iterdir()):
        file = pq.ParquetFile(path)
        for number in range(file.num_row_groups):
            table = file.read_row_group(number, use_threads=False)
            if shuffle:
                table = table.take(drawn.permutation(len(table)))
            for first in range(0, len(table), BATCH):
                yield table.slice(first, BATCH)


def _lines(folder: Path, shuffle: int) -> Iterator[list[str]]:
    drawn = np.random.default_rng(1)
    for path in sorted(folder.iterdir()):
        with path.open() as file:
            while rows := list(islice(file, shuffle or BATCH)):
                if shuffle:
                    rows = [rows[at] for at in drawn.permutation(len(rows)).tolist()]
                for first in range(0, len(rows), BATCH):
                    yield rows[first : first + BATCH]


def _values(folder: Path, shuffle: int) -> Iterator[list[object]]:
    for rows in _lines(folder, shuffle):
        yield [json.loads(each) for each in rows]


def _write(folder: Path) -> None:
    drawn = np.random.default_rng(1)
    (folder / "parquet").mkdir()
    (folder / "jsonl").mkdir()
    for number in range(FILES):
        texts = ["".join(map(chr, drawn.integers(32, 122, 300))) * 6 for _ in range(SAMPLES)]
        table = pa.table({"id": np.arange(SAMPLES) + number * SAMPLES, "text": texts})
        pq.write_table(table, folder / "parquet" / f"{number}.parquet", row_group_size=GROUP)
        with (folder / "jsonl" / f"{number}.jsonl").open("w") as file:
            file.writelines(json.dumps(row) + "\n" for row in table.to_pylist())
