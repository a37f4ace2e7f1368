"""All faults by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import UnknownError
from holdfast.inject import (
    bad_matmul,
    code_bug,
    flip_bit,
    hang_rank,
    kill_agent,
    kill_machine,
    kill_rank,
    kill_replica,
    nan,
    stop,
    wrong_bits,
    xid_79,
)
from holdfast.inject.lasting import LASTING
from holdfast.inject.target import Target
from holdfast.models.base import Frozen

Strike = Callable[[Target, int | None], int | None]
"""Does the damage; returns the rank that it hit, None for a whole machine or job."""

FAULTS: dict[str, Strike] = {
    "kill-rank": kill_rank.strike,
    "kill-machine": kill_machine.strike,
    "kill-agent": kill_agent.strike,
    "kill-replica": kill_replica.strike,
    "hang-rank": hang_rank.strike,
    "xid-79": xid_79.strike,
    "bad-matmul": bad_matmul.strike,
    "wrong-bits": wrong_bits.strike,
    "nan": nan.strike,
    "flip-bit": flip_bit.strike,
    "code-bug": code_bug.strike,
}


STOPS: dict[str, Callable[[Target, int | None], stop.Stopped]] = {
    "stop-rank": stop.stop_rank,
    "stop-agent": stop.stop_agent,
}
"""Faults that stop a process for a while: the caller that stops it lets it go on."""


class Injected(Frozen):
    """A fault that was injected."""

    fault: str
    machine: str
    rank: int | None
    at: float
    """Seconds since the Unix epoch, just before the damage was done or the update was sent."""


def inject(home: Path, fault: str, machine: str, rank: int | None = None) -> Injected:
    """Break ``machine`` of the project in ``home``; ``rank`` (default: the machine's first) where one is hit.

    Raises:
        UnknownError: no such fault, machine, or rank on that machine; the message lists what there is.
        RefusedError: there is nothing to break, or the machine does not take this fault.
        UnavailableError: the machine's agent, the gateway or the object store does not answer.
    """
    strike = FAULTS.get(fault)
    if strike is None:
        raise UnknownError(f"unknown fault {fault!r}. Faults: {', '.join((*FAULTS, *LASTING))}.")
    target = Target(home, machine)
    at = time.time()
    hit = strike(target, rank)
    return Injected(fault=fault, machine=machine, rank=hit, at=at)
