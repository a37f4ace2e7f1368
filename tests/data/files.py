"""Files of distinct samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq


def write(path: Path, ids: list[int]) -> Path:
    """Write samples with these ids, in the format of the file's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    table = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"sample {each}" for each in ids]})
    match path.suffix:
        case ".parquet":
            pq.write_table(table, temporary, row_group_size=7)
        case ".arrow":
            with pa.ipc.new_file(temporary, table.schema) as sink:
                for batch in table.to_batches(max_chunksize=5):
                    sink.write_batch(batch)
        case ".jsonl":
            temporary.write_text(
                "".join(json.dumps({"id": each, "text": "é" * (each % 5)}) + "\n" for each in ids)
            )
        case _:
            temporary.write_text("\n".join(f"{each} line" for each in ids))
    return temporary.replace(path)


def ids(rows: Any) -> list[int]:
    """The ids of rows of any format."""
    if not isinstance(rows, list):
        found: list[int] = rows.column("id").to_pylist()
        return found
    return [each["id"] if isinstance(each, dict) else int(each.split()[0]) for each in rows]


def three_hours(folder: Path) -> Path:
    """Write 40 rows for each of three hours; return the folder."""
    for hour in range(3):
        write(folder / f"data/20261124/{hour:02}/x.parquet", list(range(hour * 100, hour * 100 + 40)))
    return folder / "data"
