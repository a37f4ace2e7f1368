"""Waits for the word that a rank's state is there, and loads it from where it says."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from holdfast.errors import CheckpointError
from holdfast.session.restore import State, restore, restore_remote
from holdfast.storage import objects
from holdfast.storage.checkpoints.remote_reader import RemoteReader

LONGEST_S = 900.0
"""Longest wait for shards on their way; the agent gives a transfer up long before."""


def redeem(ticket: Path, state: State, rank: int) -> tuple[dict[str, Any], Path | None]:
    """Load ``state`` from where ``ticket`` says, once it is there; what it cost, for the agent, and the shard file.

    Raises:
        CheckpointError: no ticket came, or the checkpoint is damaged, missing or does not fit ``state``.
        UnavailableError: S3 does not answer.
    """
    begun = time.perf_counter()
    told = _wait_for(ticket)
    waited_s = time.perf_counter() - begun
    cost: dict[str, Any] = {}
    if told["key"]:
        source = RemoteReader(
            objects.connect(told["store"]),
            told["key"],
            job=told["job"],
            step=told["step"],
            alone=told["alone"],
        )
        report = restore_remote(state, source, rank)
        cost = report.model_dump(mode="json") | {"amplification": round(report.amplification, 4)}
    else:
        restore(state, Path(told["path"]), rank, verified=True)
    cost |= {
        "tier": told["tier"],
        "step": told["step"],
        "waited_s": round(waited_s, 6),
        "s": round(time.perf_counter() - begun, 6),
    }
    return cost, None if told["key"] else Path(told["path"])


def _wait_for(ticket: Path) -> dict[str, Any]:
    deadline, pause = time.monotonic() + LONGEST_S, 0.0005
    while time.monotonic() < deadline:
        try:
            told: dict[str, Any] = json.loads(ticket.read_text())
        except FileNotFoundError:
            time.sleep(pause)
            pause = min(pause * 1.2, 0.01)
        else:
            return told
    raise CheckpointError(
        f"no word from the agent in {LONGEST_S:.0f} s where this rank's state is ({ticket})"
    )
