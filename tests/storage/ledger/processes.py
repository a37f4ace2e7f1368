"""Acts of other processes on a ledger in the concurrency tests; runs in them."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

from sqlalchemy import update

from holdfast.errors import NoStandbyError, RefusedError, StaleError
from holdfast.storage.ledger import Ledger, connection
from holdfast.storage.ledger.schema import JobRow
from tests.storage.ledger.samples import alert, classified, register

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.storage.ledger.processes"])

Work = Callable[[Ledger, int], Any]
PATIENCE_S = 120

_together: Barrier | None = None


def _prepare(barrier: Barrier) -> None:
    global _together  # noqa: PLW0603
    _together = barrier


def _run(url: str, work: Work, number: int) -> Any:
    # One of them always has the lock: where that one stands still, on a busy host, the others wait for the host.
    connection.BUSY_TIMEOUT_S = connection.CONNECT_TIMEOUT_S = PATIENCE_S
    ledger = Ledger(url)
    assert _together is not None
    _together.wait(120)
    return work(ledger, number)


def at_once(url: str, work: Work, processes: int = 8) -> list[Any]:
    """Results of ``work(ledger, number)`` in as many processes, all of which start it at the same moment."""
    barrier = CONTEXT.Barrier(processes)
    with ProcessPoolExecutor(processes, CONTEXT, _prepare, (barrier,)) as pool:
        futures = [pool.submit(_run, url, work, number) for number in range(processes)]
        return [future.result(240) for future in futures]


def create(ledger: Ledger, _number: int) -> None:
    ledger.create()


def claim_two(ledger: Ledger, number: int) -> list[str]:
    try:
        return [machine.name for machine in ledger.claim_standbys(f"job-{number}", 2)]
    except NoStandbyError:
        return []


def ten_epochs(ledger: Ledger, _number: int) -> list[int]:
    return [ledger.next_epoch("gpt") for _ in range(10)]


def begin(ledger: Ledger, number: int) -> Any:
    return ledger.begin("gpt-1", 1, "evict:m0", "evict", {"by": number}).intent["by"]


def next_attempt(ledger: Ledger, _number: int) -> bool:
    try:
        ledger.next_attempt("gpt-1", 1)
    except StaleError:
        return False
    return True


def join(ledger: Ledger, number: int) -> None:
    for rank in range(10):
        ledger.join("gpt-1", [alert(rank=rank), alert(rank=100 + number)])


def open_incident(ledger: Ledger, _number: int) -> str:
    return ledger.open_incident("gpt", classified(), 1, [alert()], 1.0).id


def everything(ledger: Ledger, number: int) -> float:
    """A busy process: a mix of reads and writes; returns its slowest call in seconds."""
    slowest = 0.0
    for turn in range(20):
        begun = time.monotonic()
        register(ledger, f"n{number}", f"i{turn}")
        ledger.touch({(f"n{number}", f"i{turn}"): time.time()})
        ledger.machines()
        ledger.mark("gpt", 1, number * 100 + turn, time.time())
        ledger.record_alert(alert(rank=number), None, "x")
        ledger.incidents()
        slowest = max(slowest, time.monotonic() - begun)
    return slowest


def hang_in_a_transaction(url: str, ready: Connection) -> None:
    """Change a job's epoch, report it, and never commit."""
    ledger = Ledger(url)
    with ledger._write() as session:
        session.execute(update(JobRow).values(epoch=99))
        ready.send("in transaction")
        time.sleep(600)


def take_and_act(ledger: Ledger, number: int) -> bool:
    holder = f"worker-{number}"
    try:
        ledger.take_job("gpt-1", 1, f"run-{number}", holder, 60)
    except RefusedError:
        return False
    ledger.begin("gpt-1", 1, f"evict:by-{number}", "evict", {"by": holder}, holder=holder)
    return True


def lead(ledger: Ledger, number: int) -> str:
    return ledger.lead(f"gateway-{number}", "").holder
