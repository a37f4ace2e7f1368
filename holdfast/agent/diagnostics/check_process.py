"""The process of a stop-time check: it runs one, leaves the outcome, and waits a moment for another.

Forked from the machine's fork server, which has torch loaded; the agent, which only names the checks, has not, so
torch is imported inside their functions. Nothing else heavy is imported: a recovery starts many of these processes.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from holdfast.agent.diagnostics import (
    alignment,
    check_group,
    collectives,
    computing,
    disk_bandwidth,
    host_copies,
)
from holdfast.agent.diagnostics.check_part import CheckOutcome, CheckPart

STAY_S = 1.0
"""How long a process waits for another check before it ends."""
_POLL_S = 0.005
FindFn = Callable[[CheckPart], CheckOutcome]
CHECKS: dict[str, FindFn] = {
    "all_to_all": collectives.all_to_all,
    "all_gather": collectives.all_gather,
    "matmul": computing.matmul,
    "pcie": host_copies.pcie,
    "disk": disk_bandwidth.disk,
    "bitwise": alignment.bitwise,
}
"""By name, the checks that take processes."""


def run(find: FindFn, part: CheckPart) -> None:
    """Write what ``find`` finds, leave the group if it joined one, and wait a moment for another check."""
    # The agent stops tracking this process once the outcome is there: the kernel ends it for certain.
    signal.alarm(math.ceil(part.timeout_s) + 1)
    started = 0.0 if part.fresh else time.process_time()
    try:
        outcome = find(part)
    except Exception as error:  # whatever the library raises is the finding
        outcome = CheckOutcome(error=f"{type(error).__name__}: {error}"[:500])
    replace(outcome, cpu_s=time.process_time() - started).write(part.outcome_path)
    check_group.leave_group()
    if part.stay:
        _stay(Path(part.stay))


def _stay(order: Path) -> None:
    """Run one more check, if the order for it comes in time."""
    deadline, pause = time.monotonic() + STAY_S, _POLL_S
    claimed = order.with_suffix(".taken")
    while time.monotonic() < deadline:
        try:
            order.rename(claimed)
        except FileNotFoundError:
            time.sleep(pause)
            # The next tier comes soon or not at all; ranks that start meanwhile should have the cores.
            pause = min(1.1 * pause, 0.1)
            continue
        content = json.loads(claimed.read_text())
        claimed.unlink()
        part = CheckPart(**(content["part"] | {"fresh": False}))
        run(CHECKS[content["check"]], part)
        return
