"""Saves and restores of a state on a GPU: ``python -m benchmarks --only gpu``.

``python -m benchmarks.bench_gpu FOLDER [--write-docs]`` makes the rows of what was measured on another machine:
FOLDER has a ``speed-*.json`` for each size, as ``make test-gpu`` and ``benchmarks.gpu_saves`` write them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results, table
from benchmarks.table import Row

SIZES = ((1, 16), (1, 1), (4, 16), (16, 16))
"""GiB of a state, and MiB of each of its tensors."""
STEPS_S = (0.1, 0.3)
SHARED_MEMORY = Path("/dev/shm")
NOTE = (
    "Plain copy: the same tensors, one after the other, between the GPU and memory that torch has pinned; the ratio is "
    "that of the times. Held up: host time in checkpoint() and before the optimizer may step. Lost: beside the same "
    "steps without saves, while the copy takes its share of the GPU's memory and the digest one core. A restore "
    "verifies each byte first."
)


def run(n: int) -> list[Row]:
    """Rows of each size that shared memory holds."""
    return rows_of([_measured(gib, mib, n) for gib, mib in SIZES if _fits(gib)])


def rows_of(found: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the rows of what was measured of each size."""
    return [row for each in found for row in _rows(each)]


def _rows(found: Mapping[str, Any]) -> list[Row]:
    what = f"{found['nbytes'] / 2**30:g} GiB in {found['tensors']} tensors of a GPU"
    to_host = statistics.median(found["plain_to_host_s"])
    to_device = statistics.median(found["plain_to_device_s"])
    gigabytes = found["nbytes"] / 1e9
    note = (
        f"{what}: {found['device']}, plain copy {gigabytes / to_host:.1f} GB/s to the host and "
        f"{gigabytes / to_device:.1f} GB/s back; save complete after {statistics.median(found['whole_s']):.2f} s."
    )
    rows = [
        Row(
            f"{what}, checkpoint()", "ms", [1000 * each for each in found["call_s"]], 1.0, notes=(note, NOTE)
        ),
        Row(f"{what}, copy", "x plain copy", [each / to_host for each in found["copy_s"]], 1.11),
    ]
    for beside in found["beside"]:
        steps = f"{what}, steps of {beside['step_s']:.2f} s"
        saves = f"{steps}: {beside['saved']} saves, {beside['skipped']} skipped."
        rows += [
            Row(f"{steps}, held up by saves", "% of the step", beside["held"], 1.0, notes=(saves,)),
            Row(f"{steps}, time lost to saves", "%", beside["lost"]),
        ]
    return [*rows, Row(f"{what}, restore", "x plain copy", [each / to_device for each in found["restore_s"]])]


def _fits(gib: int) -> bool:
    return shutil.disk_usage(SHARED_MEMORY).free > 2.2 * (gib << 30)


def _measured(gib: int, mib: int, n: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=SHARED_MEMORY) as folder:
        command = [sys.executable, "-m", "benchmarks.gpu_saves", folder, *map(str, (gib, mib, n, *STEPS_S))]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=results.ROOT)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print the rows of a folder of results; write them into the docs if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_gpu", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write-docs", action="store_true", help="replace the table in docs/benchmarks.md")
    args = parser.parse_args()
    found = [json.loads(path.read_text()) for path in args.folder.glob("speed-*.json")]
    found.sort(key=lambda each: int(each["nbytes"]))
    rows = rows_of(found)
    print(table.plain(rows))
    if args.write_docs:
        results.write_docs("gpu", rows, len(found[0]["call_s"]), found[0]["host"])


if __name__ == "__main__":
    main()
