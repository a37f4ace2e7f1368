"""Faults that last until they are undone: by the process that injected them, or by a later one that finds them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast import redact
from holdfast.errors import SettingsError, UnknownError
from holdfast.inject import disks, memory_pressure, packet_loss, s3_503, slow_machine
from holdfast.inject.journal import Journal, Pen
from holdfast.inject.permission import require_site
from holdfast.inject.target import Target
from holdfast.models.base import Frozen

LASTING = ("packet-loss", "slow-machine", "full-disk", "readonly-disk", "memory-pressure", "s3-503")
_OF_THE_SITE = "s3-503"
DEFAULT_PERCENT = {"packet-loss": 5.0, "slow-machine": 50.0}


class InEffect(Frozen):
    """A fault that lasts."""

    fault: str
    machine: str
    rank: int | None = None
    change: str
    """Description of the change, for people."""
    at: float
    """Seconds since the Unix epoch, just before."""


@contextlib.contextmanager
def lasting(
    home: Path,
    fault: str,
    machine: str,
    *,
    rank: int | None = None,
    percent: float | None = None,
    path: Path | None = None,
) -> Iterator[InEffect]:
    """Break ``machine`` for as long as the context lasts; faults left by a killed process are undone first.

    Args:
        home: of the project.
        fault: one of :data:`LASTING`.
        machine: its name; of ``s3-503`` it does not matter.
        rank: of ``memory-pressure`` (default: the machine's first).
        percent: of packets that are lost, or of speed.
        path: the folder of a disk fault (default: ``data`` in the machine's folder).

    Raises:
        UnknownError: no such fault, machine or rank.
        RefusedError: the site does not allow it, or there is nothing to break.
        UnavailableError: the kernel or a tool is missing; the message names what is needed.
        SettingsError: ``percent`` is outside of its range.
    """
    if fault not in LASTING:
        raise UnknownError(f"unknown fault {fault!r} that lasts. Those are: {', '.join(LASTING)}.")
    share = DEFAULT_PERCENT.get(fault, 0.0) if percent is None else percent
    if not 0 <= share < 100 or (fault in DEFAULT_PERCENT and not share):
        raise SettingsError(f"--percent = {share:g}, expected more than 0 and less than 100")
    target = Target(home, machine)
    require_site(target.settings)
    journal = Journal(home)
    journal.undo(left_over=True)
    at = time.time()
    with journal.holding(fault, machine) as pen, contextlib.ExitStack() as stack:
        if fault == _OF_THE_SITE:
            stack.enter_context(s3_503.answering(target.settings, pen))
            change, hit = f"{redact.passwords(target.settings.s3)} answers 503 Slow Down", None
        else:
            change, hit = _strike(fault, target, pen, rank, share, path)
        yield InEffect(fault=fault, machine=machine, rank=hit, change=change, at=at)


def _strike(  # noqa: PLR0917
    fault: str, target: Target, pen: Pen, rank: int | None, percent: float, path: Path | None
) -> tuple[str, int | None]:
    match fault:
        case "packet-loss":
            return (
                f"{percent:g} % of what it sends on {packet_loss.strike(target, pen, percent)} is lost",
                None,
            )
        case "slow-machine":
            left = slow_machine.strike(target, pen, percent)
            return f"{percent:g} % less processor time: {left:.2f} cores", None
        case "full-disk":
            return f"nothing is left of {disks.full(target, pen, path)}", None
        case "readonly-disk":
            return f"{disks.read_only(target, pen, path)} is read-only", None
        case _:
            hit = memory_pressure.strike(target, pen, rank)
            return f"rank {hit} has {memory_pressure.LEFT_BYTES >> 20} MiB left", hit


def undo(home: Path) -> list[str]:
    """Undo all faults that last in the project, also those whose injection still runs; what they were."""
    return Journal(home).undo(left_over=False)
