"""A check of two machines, with one GPU of each after the other: each turn has a group of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.agent.diagnostics import check_group, devices, meeting
from holdfast.agent.diagnostics.check_group import ExchangeFn
from holdfast.agent.diagnostics.check_part import CheckOutcome, CheckPart

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

TURNS_SHARE = 0.6
"""Of a check's time that the GPUs of a pair may take, one after the other."""


def in_turn(part: CheckPart, exchange: ExchangeFn) -> CheckOutcome:
    """Do ``exchange`` with the other machine, with the first GPU of both, then with the second, and so on.

    As many as both have, and as fit into the time: rank 0 decides whether there is one more turn. An agent of
    an earlier release makes no offer; then the first GPUs exchange, without the job's environment, as it does.
    Two machines that are one host have the same GPUs, which NCCL refuses to connect with themselves: their processors
    exchange.
    """
    import torch.distributed as dist  # noqa: PLC0415

    began, own = time.monotonic(), devices.gpus()
    own = min(own, part.gpus or own)
    ids = devices.gpu_ids(own)
    store, theirs = meeting.met(part, {"gpus": own, "env": check_group.env_digest(part.env), "ids": ids})
    if set(ids) & set(theirs.get("ids", ())):
        own = 0
    if part.env and theirs.get("env") != check_group.env_digest(part.env):
        part = replace(part, env={})
    os.environ.update(part.env)
    turns = max(1, min(own, int(theirs.get("gpus", 1))))
    found: list[CheckOutcome] = []
    while True:
        turn = len(found)
        try:
            device = devices.take_gpu(turn) if own else None
            found.append(check_group.exchanged(part, meeting.of_turn(store, turn), device, exchange))
            if turns == 1:
                return found[0]
            dist.barrier()  # the other may still be reading from this group
        except Exception as error:
            if turns == 1:
                raise
            raise RuntimeError(f"GPU {turn}: {type(error).__name__}: {error}") from error
        if not _one_more(store, part, len(found), turns, time.monotonic() - began):
            return replace(_of_all(found), turns=len(found), of_turns=turns)
        check_group.leave_group()


def _one_more(store: Store, part: CheckPart, done: int, turns: int, took_s: float) -> bool:
    """Return whether both machines take another turn: by the clock of rank 0, so that none waits alone."""
    if done == turns:
        return False
    if part.rank == 0:
        fits = took_s * (done + 1) / done < TURNS_SHARE * part.timeout_s
        store.set(f"after-{done}", "go" if fits else "end")
        return fits
    return bool(store.get(f"after-{done}") == b"go")


def _of_all(found: Sequence[CheckOutcome]) -> CheckOutcome:
    """Return the outcome of the turn with damaged bytes, else of the slowest."""
    gpu = min(range(len(found)), key=lambda at: (not found[at].wrong_bytes, found[at].value or 0.0))
    return replace(found[gpu], gpu=gpu)
