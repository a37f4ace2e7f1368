"""Make the recordings: ``python -m tests.flight.record [NAME ...]``. Needs torch, py-spy, Linux; seconds for each."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import mmap
import os
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch.distributed.device_mesh  # noqa: F401  (once, not in every rank)

from holdfast.agent.diagnostics import flight, stacks
from holdfast.agent.ranks import flight_thread
from tests.flight import wire
from tests.flight.faults import train
from tests.flight.labels import RECORDINGS, labels
from tests.flight.program import ASKED, CUT, Fault, run

_ENTRIES = 24
"""Of the newest, that are kept."""
_KEYS = {
    *(
        "record_id",
        "pg_id",
        "process_group",
        "collective_seq_id",
        "p2p_seq_id",
        "op_id",
        "profiling_name",
        "state",
    ),
    *("input_sizes", "time_discovered_started_ns", "retired", "is_p2p"),
}
_STILL_S = 2.0
_WELL_STEPS = 6
_PAUSE_S = 0.3
"""Between ranks of a job that goes on."""


def record(label: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One run, until nothing moves any more."""
    os.environ |= {
        flight_thread.ENV_FOLDER: str(folder),
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_FR_BUFFER_SIZE": "2000",
    }
    world = math.prod(label["mesh"].values())
    ticks = mmap.mmap(-1, 8 * world)
    if label.get("fault") == "link":
        wire.isolate()
    pids = {rank: _fork(rank, folder, label, ticks) for rank in range(world)}
    try:
        if label.get("fault") == "link":
            _cut(folder, pids[label["rank"]], pids[label["peer"]])
        well = label.get("faults") == []
        _wait_for_steps(ticks) if well else _wait_until_still(ticks)
        alive = {rank: pid for rank, pid in pids.items() if _alive(pid)}
        dumps = asyncio.run(_dump(folder, alive, _PAUSE_S if well else 0.0))
        return {
            "asked": {rank: _trimmed(folder / f"{rank}{flight_thread.SUFFIX}") for rank in alive},
            "stacks": [
                dump.model_copy(update={"frames": dump.frames[:6], "machine": "m"}).model_dump(mode="json")
                for dump in dumps
                if dump.thread == "MainThread" and (not dump.child or "layout" in label)
            ],
        }
    finally:
        for pid in pids.values():
            _end(pid)


def _fork(rank: int, folder: Path, label: dict[str, Any], ticks: mmap.mmap) -> int:
    if pid := os.fork():
        return pid
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1
        struct.pack_into("<q", ticks, 8 * rank, count)

    try:
        os.setsid()
        flight_thread.start(rank)
        if "layout" in label:
            train(rank, str(folder / "store"), label, tick)
        else:
            fault = Fault(label["fault"], label["rank"], label["at"])
            run(rank, str(folder / "store"), label["mesh"], fault, tick)
    except BaseException as error:
        sys.stderr.write(f"rank {rank}: {type(error).__name__} {str(error)[:100]}\n")
    finally:
        os._exit(1)


def _cut(folder: Path, source: int, target: int) -> None:
    deadline = time.monotonic() + 120
    while not (folder / ASKED).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    wire.cut(source, target)
    (folder / CUT).touch()


def _wait_until_still(ticks: mmap.mmap) -> None:
    deadline, seen, since = time.monotonic() + 120, b"", time.monotonic()
    while time.monotonic() < deadline:
        now = ticks[:]
        if now != seen or not all(struct.unpack(f"<{len(now) // 8}q", now)):
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > _STILL_S:
            return
        time.sleep(0.1)
    raise TimeoutError("it goes on")


def _wait_for_steps(ticks: mmap.mmap) -> None:
    deadline = time.monotonic() + 120
    while min(struct.unpack(f"<{len(ticks) // 8}q", ticks[:])) < _WELL_STEPS:
        if time.monotonic() > deadline:
            raise TimeoutError("it does not begin")
        time.sleep(0.1)


async def _dump(folder: Path, alive: dict[int, int], pause_s: float) -> list[Any]:
    found = []
    for part in [{rank: pid} for rank, pid in alive.items()] if pause_s else [alive]:
        found += await stacks.dump("m", part)
        await flight.collect(folder, part, 5.0)
        await asyncio.sleep(pause_s)
    return found


def _trimmed(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    content = json.loads(path.read_text())
    for recording in content["recordings"]:
        entries = recording.get("entries") or []
        recording["entries"] = [
            {key: value for key, value in entry.items() if key in _KEYS} for entry in entries[-_ENTRIES:]
        ]
    return dict(content)


def _alive(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False


def _end(pid: int) -> None:
    """End a rank and its children: a loader's worker, a command."""
    try:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def main(names: list[str]) -> None:
    """Record ``names``, or all."""
    for name, label in (labels() | labels("layouts")).items():
        if names and name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            recorded = record(label, Path(folder))
        content = json.dumps(recorded, separators=(",", ":")).encode()
        (RECORDINGS / f"{name}.json.gz").write_bytes(gzip.compress(content, mtime=0))
        sys.stdout.write(f"{name}: {len(recorded['asked'])} ranks alive\n")


if __name__ == "__main__":
    main(sys.argv[1:])
