"""Reports on one rank: its state while it runs, the outcome of its replay, and the end of its log."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from holdfast.agent.ranks.exits import LOG_READ_BYTES
from holdfast.agent.ranks.processes import Watched
from holdfast.agent.ranks.rank_table import RankStatus
from holdfast.models.agent import RankResult, RankState
from holdfast.policies.classify import last_words

_LATE_S, _LATE_STEPS = 1.0, 2.0
"""A step that took so long, or so many times the usual one, is late: then what the rank started is looked at."""


def state(process: Watched, row: RankStatus, log: Path, why_new: str) -> RankState:
    """Return the rank's state.

    Args:
        process: the rank's.
        row: all that the rank has reported.
        log: its log file.
        why_new: the reason for which a new process runs though the one before was kept; empty: none.
    """
    cpu_s, letter = process.usage()
    exited = process.gone.done()
    # One that ends well because it was ordered to (SIGTERM) has not done its work: the job is not done.
    status = None if process.ordered and process.exit_code == 0 else process.exit_code
    found = row.state(process.pid, status, cpu_s, letter, exited)
    if exited:
        return found
    if why_new:
        found = found.model_copy(update={"why_new": why_new})
    found = found.model_copy(update={"log_at": _written_at(log)})
    if row.steps_done and time.time() - found.step_at < max(_LATE_S, _LATE_STEPS * found.step_s):
        return found  # it makes steps
    children_cpu_s, io_bytes = process.work()
    return found.model_copy(update={"children_cpu_s": children_cpu_s, "io_bytes": io_bytes})


def result(process: Watched, row: RankStatus, machine: str) -> RankResult:
    """Return how a rank of a replay ended on ``machine``."""
    ok, detail = process.exit_code == 0, f"exit status {process.exit_code}"
    replayed = row.replayed or {}
    raised = {} if row.not_finite or row.replayed is not None else row.failed or {}
    known = last_words.match_exception(raised) if raised else None
    if row.replayed is not None:
        ok, detail = bool(row.replayed.get("ok")), str(row.replayed.get("detail", ""))
    elif row.failed is not None:
        detail = f"{row.failed.get('error_type')}: {row.failed.get('message')}"
    if row.not_finite:
        ok, detail = False, row.not_finite
    return RankResult(
        rank=process.rank,
        machine=machine,
        ok=ok,
        detail=detail,
        digests=replayed.get("digests") or (),
        kind=str(replayed.get("hardware") or ""),
        began=bool(row.steps_done or row.not_finite or row.replayed is not None),
        unloadable=row.damaged,
        error_type=str(raised.get("error_type") or ""),
        cause=known.pattern.cause if known else "",
    )


def log_tail(log: Path) -> str:
    """Return the end of a log, enough for what stands before the stacks of a rank's threads."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_READ_BYTES))
            return file.read(LOG_READ_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _written_at(log: Path) -> float | None:
    with contextlib.suppress(OSError):
        return log.stat().st_mtime
    return None
