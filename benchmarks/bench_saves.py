"""How long a save blocks training, beside other checkpoint libraries; what saves cost; how long planning takes."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import load_plan, planning
from benchmarks.peers import VENV
from benchmarks.save_contestant import COMPUTE, CONTESTANTS
from benchmarks.site import Site
from benchmarks.table import Row
from holdfast.storage.checkpoints.format import boxes
from holdfast.storage.checkpoints.format.global_plan import plan_globally

ROOT = Path(__file__).parents[1]
CONTESTANT_S = 150.0
"""Other contestants need less than a minute."""
IN_PEERS_VENV = {"bytecheckpoint", "NVRx local", "DLRover flash"}
NOTES = (
    f"save of 1 GiB in 64 tensors, one rank, into shared memory: time that training is blocked, in the call "
    f"and before the optimizer may step. Overlapped: computing for {COMPUTE:g} times the plain copy lies in "
    "between. Plain copy: torch._foreach_copy_ into warm memory, before each save. Contestants run one after another.",
    "NVRx local checkpoint takes CUDA tensors only: missing without a GPU. A contestant that is "
    f"not done after {CONTESTANT_S:.0f} s is missing: ByteCheckpoint 0.0.2, made for torch 2.5, still writes its first "
    "state then under torch 2.13.",
)


def run(site: Site, n: int) -> list[Row]:
    """Rows for blocking, throughput and planning."""
    found = {name: _measure(name, n) for name in CONTESTANTS}
    for name, times in found.items():
        print(f"  {name}: {_summary(times)}", flush=True)
    ours = found.pop("holdfast")
    return [
        Row(
            "save, training blocked, overlapped",
            "ms",
            ours["overlapped"],
            5.0,
            {name: times["overlapped"] for name, times in found.items()},
            1.0,
            NOTES,
        ),
        Row(
            "save, training blocked, not overlapped",
            "x plain copy",
            _over_copy(ours),
            1.15,
            {name: _over_copy(times) for name, times in found.items()},
            1.0,
        ),
        _throughput(n),
        *_planning(min(n, 3)),
    ]


def _measure(name: str, n: int) -> dict[str, list[float]]:
    python = VENV / "bin" / "python" if name in IN_PEERS_VENV else Path(sys.executable)
    with _shared_memory() as folder:
        command = [str(python), str(ROOT / "benchmarks" / "save_contestant.py"), name, str(folder), str(n)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=CONTESTANT_S, cwd=ROOT
            )
            found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
            return found
        except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
            if name == "holdfast":
                raise
            print(f"missing peer {name}: {_why(error)}", file=sys.stderr, flush=True)
            return {"copy": [], "alone": [], "overlapped": [], "call": []}


def _why(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"not done within {error.timeout:.0f} s"
    output = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
    return output[-1] if output else repr(error)


def _throughput(n: int) -> Row:
    with _shared_memory() as folder:
        command = [sys.executable, "-m", "benchmarks.save_throughput", str(folder), str(n)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"  throughput: {found}", flush=True)
    note = (
        f"throughput lost: the example's model, state {found['state_nbytes'] / 2**20:.0f} MiB, step "
        f"{found['step_s']:.2f} s on all cores, {found['saved']} saves completed and {found['skipped']} skipped."
    )
    return Row("throughput lost, a save at every step", "%", found["lost"], 3.0, notes=(note,), details=found)


def _planning(n: int) -> list[Row]:
    rows = []
    size = f"{planning.RANKS} ranks x {planning.TENSORS} tensors"
    for name, make in (
        ("replicated", planning.replicated),
        ("TP 8 x PP 16 x DP", planning.three_dimensional),
        ("fully sharded", planning.sharded_with_own),
    ):
        planned, written, packed = [], [], []
        described, outlines = make()
        for _ in range(n):
            begun = time.perf_counter()
            plan = plan_globally(described, outlines)
            plan.assignments()
            planned.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            plan.write_metadata("1.1", io.BytesIO())
            written.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            compact = boxes.pack(plan.table(), "1.1")
            packed.append(time.perf_counter() - begun)
        print(f"  plan, {name}: {statistics.median(planned):.1f} s", flush=True)
        rows.append(Row(f"global plan, {size}, {name}", "s", planned, 10.0))
        rows.append(Row(f".metadata of it, {name}", "s", written, 10.0))
        note = f"compact metadata, {name}: {len(compact) / 1024:.0f} KiB"
        rows.append(Row(f"compact metadata of it, {name}", "s", packed, 10.0, notes=(note,)))
    return [*rows, *_load_plans(compact, n)]


def _load_plans(compact: bytes, n: int) -> list[Row]:
    """One rank's load plan of the fully sharded state, at three quarters of the ranks: every part lies askew."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "boxes.bin"
        file.write_bytes(compact)
        found = [
            load_plan.measured(file, planning.TENSORS, 5, planning.RANKS * 3 // 4, planning.RANKS)
            for _ in range(n)
        ]
    print(f"  load plan of a rank: {found[0]}", flush=True)
    what = f"of {planning.RANKS} x {planning.TENSORS} boxes"
    return [
        Row(f"metadata and load plan of one rank, {what}", "s", [each["s"] for each in found], 2.0),
        Row(f"memory of it, {what}", "MiB", [each["mib"] for each in found], 300.0),
    ]


def _over_copy(times: dict[str, list[float]]) -> list[float]:
    return [alone / copy for alone, copy in zip(times["alone"], times["copy"], strict=True)]


def _summary(times: dict[str, list[float]]) -> str:
    if not times["copy"]:
        return "missing"
    return ", ".join(f"{name} {statistics.median(samples):.1f} ms" for name, samples in times.items())


@contextlib.contextmanager
def _shared_memory() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir="/dev/shm"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    from benchmarks import table

    print(table.plain(run(None, int(sys.argv[1]))))  # type: ignore[arg-type]
