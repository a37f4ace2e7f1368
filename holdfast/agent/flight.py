"""Flight recorders of ranks: have them written, read them safely, sum them up.

PyTorch keeps the last collectives of every rank (NCCL and gloo alike). NCCL's watchdog writes them to a file when a
collective times out; of a rank that hangs they are asked for by a signal that a thread of the rank waits for
(:mod:`holdfast.agent.flight_thread`). The files are pickles, written by processes that run a user's code: they are
read with an unpickler that makes plain data and nothing else.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import os
import pickle
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.agent.flight_thread import SIGNAL
from holdfast.errors import CheckpointError
from holdfast.models.agent import FlightRecord

MAX_BYTES = 64 << 20
_POLL_S = 0.02


class MaliciousPickleError(CheckpointError):
    """A file that claims to be a flight recording wants more than plain data."""


class _PlainData(pickle.Unpickler):
    """Numbers, texts, lists, dictionaries: what a recording is made of. Nothing is imported or called."""

    def find_class(self, module: str, name: str) -> Any:
        raise MaliciousPickleError(f"a flight recording asks for {module}.{name}: refused")

    def persistent_load(self, pid: Any) -> Any:
        raise MaliciousPickleError(f"a flight recording refers to {pid!r}: refused")


def load(content: bytes) -> dict[str, Any]:
    """The recording in ``content``.

    Raises:
        MaliciousPickleError: it holds anything but plain data, or is no recording.
    """
    if len(content) > MAX_BYTES:
        raise MaliciousPickleError(f"a flight recording of {len(content)} bytes (limit {MAX_BYTES}): refused")
    try:
        found = _PlainData(io.BytesIO(content)).load()
    except MaliciousPickleError:
        raise
    except Exception as error:  # a broken pickle may raise anything
        raise MaliciousPickleError(f"no flight recording: {type(error).__name__} {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("entries", []), list):
        raise MaliciousPickleError("no flight recording: it has no entries")
    return found


async def collect(folder: Path, ranks: Mapping[int, int], timeout_s: float = 1.0) -> list[FlightRecord]:
    """Records of ``ranks`` (rank -> pid; 0: it ended), from what they left and what those alive are asked to write.

    A recording that cannot be read is left out: it accuses nobody.
    """
    asked_at = time.time()
    asked = [rank for rank, pid in ranks.items() if pid and _ask(pid)]
    deadline = time.monotonic() + timeout_s
    for rank in asked:
        while not _fresh(folder / str(rank), asked_at) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
    records: list[FlightRecord] = []
    for rank in ranks:
        with contextlib.suppress(OSError, CheckpointError):
            content = await asyncio.to_thread((folder / str(rank)).read_bytes)
            records += summarise(rank, load(content))
    return records


def summarise(rank: int, recording: Mapping[str, Any]) -> list[FlightRecord]:
    """How far ``rank`` came in each group. Groups are told apart by their members where the recording has them."""
    newest: dict[str, dict[str, Any]] = {}
    for entry in recording.get("entries", ()):
        if isinstance(entry, Mapping) and not entry.get("is_p2p"):
            newest[_group(entry)] = dict(entry)
    members = {name: _members(told) for name, told in _config(recording)}
    records = []
    for group, status in _status(recording):
        entry = newest.get(group, {})
        records.append(
            FlightRecord(
                rank=rank,
                group=group,
                ranks=members.get(group, ()),
                enqueued=int(status.get("last_enqueued_collective", -1)),
                completed=int(status.get("last_completed_collective", -1)),
                operation=str(entry.get("profiling_name", ""))[:100],
            )
        )
    return records


def _group(entry: Mapping[str, Any]) -> str:
    named = entry.get("process_group")
    return str(named[0]) if isinstance(named, (list, tuple)) and named else str(entry.get("pg_id", ""))


def _config(recording: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    told = recording.get("pg_config")
    return (
        [(str(k), v) for k, v in told.items() if isinstance(v, Mapping)] if isinstance(told, Mapping) else []
    )


def _status(recording: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    told = recording.get("pg_status")
    return (
        [(str(k), v) for k, v in told.items() if isinstance(v, Mapping)] if isinstance(told, Mapping) else []
    )


def _members(told: Mapping[str, Any]) -> tuple[int, ...]:
    try:
        ranks = ast.literal_eval(str(told.get("ranks", "[]")))
        return tuple(int(rank) for rank in ranks)
    except (ValueError, SyntaxError, TypeError):
        return ()


def _ask(pid: int) -> bool:
    """Ask a process to write its recording; only one that waits for the signal: it would end any other."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        blocked = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk")), 16)
        if blocked >> (SIGNAL - 1) & 1:
            os.kill(pid, SIGNAL)
            return True
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    return False


def _fresh(path: Path, since: float) -> bool:
    try:
        return path.stat().st_mtime >= since - 0.01
    except OSError:
        return False
