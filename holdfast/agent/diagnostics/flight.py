"""Flight recorders of ranks: have them written, read them safely, summarise them.

PyTorch keeps the last collectives of every rank. A rank that hangs is asked for them by a signal, for which a thread of
the rank waits (:mod:`holdfast.agent.ranks.flight_thread`). NCCL's watchdog writes its own when a collective times
out: these come before what was asked for later, when collectives are aborted. They are pickles, written by processes
that run a user's code: they are read by :mod:`holdfast.bounded_pickle`, which makes plain data and
nothing else, and not more than they hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast import bounded_pickle
from holdfast.agent.diagnostics.flight_summary import members, summarise
from holdfast.agent.ranks.flight_thread import SIGNAL, SUFFIX
from holdfast.bounded_pickle import MaliciousPickleError
from holdfast.errors import CheckpointError
from holdfast.models.agent import FlightRecord

MAX_ASKED_BYTES = 8 << 20
"""Of what a rank's own thread writes: text expands more per byte than a pickle whose operations are counted."""
_POLL_S = 0.02


def load(content: bytes) -> dict[str, Any]:
    """Return the recording in ``content``, a pickle.

    Raises:
        MaliciousPickleError: it holds anything but plain data, asks for more than that, or is no recording.
    """
    try:
        found = bounded_pickle.load(content)
    except MaliciousPickleError as error:
        raise MaliciousPickleError(f"no flight recording: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("entries", []), list):
        raise MaliciousPickleError("no flight recording: it has no entries")
    return found


def read_asked(rank: int, content: bytes) -> list[FlightRecord]:
    """Return records of what ``rank``'s own thread wrote."""
    return _all(rank, *_asked(content))


def _asked(content: bytes) -> tuple[list[dict[str, Any]], dict[str, tuple[int, ...]]]:
    """Return recordings and members of groups.

    Raises:
        CheckpointError: it is something else, or too much.
    """
    if len(content) > MAX_ASKED_BYTES:
        raise CheckpointError(f"no flight recording: {len(content)} bytes (limit {MAX_ASKED_BYTES})")
    try:
        answer = json.loads(content)
        recordings = [each for each in answer["recordings"] if isinstance(each, dict)]
        return recordings, members(answer["groups"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"no flight recording: {type(error).__name__} {error}") from None


async def collect(
    folder: Path, ranks: Mapping[int, int], timeout_s: float = 1.0, *, watchdog: str = "", since: float = 0.0
) -> list[FlightRecord]:
    """Return records of ``ranks`` (rank -> pid; 0: it ended): of files they left, and of those written on request.

    A recording that cannot be read is left out: no machine is accused for it.

    Args:
        folder: where the ranks' own threads write to.
        ranks: of one epoch.
        timeout_s: how long to wait for those that are asked.
        watchdog: the beginning of the names of NCCL's own files; empty: in ``folder``.
        since: when the ranks were started (Unix seconds); older files of the watchdog are another epoch's.
    """
    asked_at = time.time()
    waited = [rank for rank, pid in ranks.items() if pid and _ask(pid)]
    deadline = time.monotonic() + timeout_s
    for rank in waited:
        while not _fresh(folder / f"{rank}{SUFFIX}", asked_at) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
    records: list[FlightRecord] = []
    for rank in ranks:
        own, theirs = folder / f"{rank}{SUFFIX}", Path(f"{watchdog or f'{folder}/'}{rank}")
        # Beside the event loop: it takes a moment for each.
        records += await asyncio.to_thread(_records, rank, own, theirs, since)
    return records


def _records(rank: int, own: Path, theirs: Path, since: float) -> list[FlightRecord]:
    """Return one rank's records: of the watchdog's file if there is one, and what only the rank's thread reports."""
    recordings: list[dict[str, Any]] = []
    groups: dict[str, tuple[int, ...]] = {}
    with contextlib.suppress(OSError, CheckpointError):
        recordings, groups = _asked(_bytes(own, MAX_ASKED_BYTES))
    found = _all(rank, recordings, groups)
    with contextlib.suppress(OSError, CheckpointError):
        if _fresh(theirs, since):
            first = summarise(rank, load(_bytes(theirs, bounded_pickle.MAX_BYTES)), groups)
            backends = {record.backend for record in first}
            return [*first, *(record for record in found if record.backend not in backends)]
    return found


def _all(
    rank: int, recordings: list[dict[str, Any]], groups: Mapping[str, tuple[int, ...]]
) -> list[FlightRecord]:
    """Return records of all recorders of a rank; a group that is missing in one may be present in another."""
    found = [record for recording in recordings for record in summarise(rank, recording, groups)]
    recorded = {record.group for record in found if record.enqueued >= 0}
    silent = {r.group: r for r in found if r.enqueued < 0 and r.group not in recorded}
    return [*(record for record in found if record.enqueued >= 0), *silent.values()]


def _bytes(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        return file.read(most + 1)


def _ask(pid: int) -> bool:
    """Ask a process to write its recording, if it waits for the signal: any other process would be ended by it."""
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
