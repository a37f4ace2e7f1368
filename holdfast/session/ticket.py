"""Waits for the ticket that names the place of a rank's state, and loads the state from there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.errors import CheckpointError
from holdfast.models.start_from import StartFrom
from holdfast.session.recovery import Recovered, load_cost, recover, recover_from_ranks
from holdfast.session.restore import State, restore_remote
from holdfast.session.start_from import start_from
from holdfast.session.state import StateTree
from holdfast.storage import objects
from holdfast.storage.checkpoints.remote.remote_reader import RemoteReader
from holdfast.storage.checkpoints.save.buffers import Saved

LONGEST_S = 900.0
"""Longest wait for shards on their way; the agent gives up a transfer long before."""
SAY_AGAIN_S = 0.5


def redeem(
    ticket: Path,
    state: State,
    rank: int,
    arrived: Callable[[Sequence[Path]], None],
    waits: Callable[[], object],
) -> tuple[dict[str, Any], Path | None, Saved | None]:
    """Load ``state`` from where ``ticket`` points, once it is there; call ``arrived`` before any byte is read.

    ``arrived`` is given the shards of other ranks that this one reads; ``waits`` is called now and then until the
    ticket is there.

    Returns:
        The cost, for the agent; the shard file that all of the state came from, if it was one; and the save that the
        shards of other ranks are of, if it came from these.

    Raises:
        UncoveredError: no shard and no checkpoint in S3 has all that ``state`` needs; names the path.
        CheckpointError: no ticket came, or the checkpoint is damaged, missing or does not fit ``state``.
        UnavailableError: S3 does not answer.
    """
    begun = time.perf_counter()
    order = _wait_for(ticket, waits)
    waited_s = time.perf_counter() - begun
    remote = partial(_in_store, order) if order["key"] else None
    others = None if order.get("paths") is None else [*map(Path, order["paths"])]
    arrived(others or [])
    if order.get("start_from"):
        source = StartFrom.model_validate(order["start_from"])
        found = start_from(
            source, state.state if isinstance(state, StateTree) else state, rank, order["store"]
        )
    elif others is not None:
        found = recover_from_ranks(state, rank, others, remote=remote)
    elif order["path"] or order["alone"]:
        path = Path(order["path"]) if order["path"] else None
        found = recover(state, rank, path, verified=True, remote=remote)
    else:
        found = Recovered(None, load_cost(restore_remote(state, _in_store(order, alone=False), rank)))
    cost = {"tier": order["tier"]} | found.cost
    cost |= {
        "step": order["step"],
        "waited_s": round(waited_s, 6),
        "s": round(time.perf_counter() - begun, 6),
    }
    return cost, found.shard, None if others is None else (order["epoch"], order["step"])


def _in_store(order: dict[str, Any], alone: bool) -> RemoteReader:
    return RemoteReader(
        objects.connect(order["store"]), order["key"], job=order["job"], step=order["step"], alone=alone
    )


def _wait_for(ticket: Path, waits: Callable[[], object]) -> dict[str, Any]:
    deadline, pause, sent_at = time.monotonic() + LONGEST_S, 0.0005, 0.0
    while (now := time.monotonic()) < deadline:
        try:
            content: dict[str, Any] = json.loads(ticket.read_text())
        except FileNotFoundError:
            if now - sent_at > SAY_AGAIN_S:  # a datagram may be lost
                waits()
                sent_at = now
            time.sleep(pause)
            pause = min(pause * 1.2, 0.01)
        else:
            return content
    raise CheckpointError(
        f"the agent did not report within {LONGEST_S:.0f} s where this rank's state is ({ticket})"
    )
