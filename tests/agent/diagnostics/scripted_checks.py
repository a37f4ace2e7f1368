"""Commands of checks, and processes with the answers that a test sets."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from holdfast.agent.diagnostics.check_part import CheckOutcome, CheckPart
from holdfast.models.agent import Diagnose, Rendezvous


class Ended:
    """A process that did its work at once."""

    def __init__(self, exitcode: int | None = 0) -> None:
        self.exitcode = exitcode
        self.killed = False

    def kill(self) -> None:
        self.killed, self.exitcode = True, -signal.SIGKILL


class ScriptedForks:
    """Forks processes that leave the given outcomes; None: they run for ever."""

    def __init__(self, *outcomes: CheckOutcome | int | None) -> None:
        self.outcomes = outcomes
        self.forked: list[Ended] = []
        self.parts: list[CheckPart] = []

    def __call__(self, target: Callable[..., None], args: tuple[Any, ...]) -> Ended:
        _, part = args
        self.parts.append(part)
        outcome = self.outcomes[len(self.forked)]
        process = Ended(outcome if isinstance(outcome, int) else None if outcome is None else 0)
        if isinstance(outcome, CheckOutcome):
            outcome.write(part.outcome_path)
        self.forked.append(process)
        return process


GOOD = CheckOutcome(backend="gloo", value=1000.0, unit="MB/s", repeats=5)


def command(check: str = "all_to_all", *, timeout_s: float = 90.0, **more: Any) -> Diagnose:
    return Diagnose(job="j", epoch=3, incarnation="i", check=check, timeout_s=timeout_s, **more)


def pair(rank: int, peer: str, port: int = 1, timeout_s: float = 90.0, **more: Any) -> Diagnose:
    return command(
        "all_gather",
        peer=peer,
        process_rank=rank,
        rendezvous=Rendezvous(host="127.0.0.1", port=port),
        timeout_s=timeout_s,
        **more,
    )
