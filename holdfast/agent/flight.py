"""Flight recorders of ranks: have them written, read them safely, sum them up.

PyTorch keeps the last collectives of every rank (NCCL and gloo alike). NCCL's watchdog writes them to a file when a
collective times out; of a rank that hangs they are asked for by a signal that a thread of the rank waits for
(:mod:`holdfast.agent.flight_thread`). The files are pickles, written by processes that run a user's code: they are
read by :mod:`holdfast.agent.bounded_pickle`, which makes plain data and nothing else, and not more than they hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.agent import bounded_pickle
from holdfast.agent.bounded_pickle import MaliciousPickleError
from holdfast.agent.flight_thread import SIGNAL
from holdfast.errors import CheckpointError
from holdfast.models.agent import FlightRecord
from holdfast.models.base import MOST_STEPS

_POLL_S = 0.02
_MEMBERS = re.compile(r"\[\s*(\d{1,9}(\s*,\s*\d{1,9})*)?\s*\]")


def load(content: bytes) -> dict[str, Any]:
    """The recording in ``content``.

    Raises:
        MaliciousPickleError: it holds anything but plain data, wants more than that, or is no recording.
    """
    try:
        found = bounded_pickle.load(content)
    except MaliciousPickleError as error:
        raise MaliciousPickleError(f"no flight recording: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("entries", []), list):
        raise MaliciousPickleError("no flight recording: it has no entries")
    return found


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return load(file.read(bounded_pickle.MAX_BYTES + 1))


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
            # Beside the event loop: it takes a moment for each.
            records += summarise(rank, await asyncio.to_thread(_read, folder / str(rank)))
    return records


def summarise(rank: int, recording: Mapping[str, Any]) -> list[FlightRecord]:
    """How far ``rank`` came in each group. Groups are told apart by their members where the recording has them."""
    newest: dict[str, dict[str, Any]] = {}
    over: dict[str, int] = {}
    for entry in recording.get("entries", ()):
        if isinstance(entry, Mapping) and not entry.get("is_p2p"):
            group = _group(entry)
            newest[group] = dict(entry)
            if entry.get("retired") is True or entry.get("state") == "completed":
                over[group] = max(over.get(group, -1), _number(entry.get("collective_seq_id")))
    members = {name: _members(told) for name, told in _config(recording)}
    records = []
    for group, status in _status(recording):
        entry = newest.get(group, {})
        records.append(
            FlightRecord(
                rank=rank,
                group=group,
                ranks=members.get(group, ()),
                enqueued=_number(status.get("last_enqueued_collective")),
                # The status names whichever ended last: of two that end at once it may be the one before.
                completed=max(_number(status.get("last_completed_collective")), over.get(group, -1)),
                operation=_text(entry.get("profiling_name"))[:100],
            )
        )
    return records


def _group(entry: Mapping[str, Any]) -> str:
    named = entry.get("process_group")
    return _text(named[0] if isinstance(named, (list, tuple)) and named else entry.get("pg_id"))


def _text(value: object) -> str:
    """Only of what is plain: lists may hold one another so often that no memory has room for their text."""
    return str(value)[:1000] if isinstance(value, (str, int, float)) else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < MOST_STEPS else -1


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
    ranks = told.get("ranks")
    if not isinstance(ranks, str) or not _MEMBERS.fullmatch(ranks):
        return ()
    return tuple(int(rank) for rank in re.findall(r"\d+", ranks))


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
