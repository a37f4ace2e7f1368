"""Many processes at one ledger: none waits long, none fails, exactly one wins."""

from __future__ import annotations

import os
import signal

import pytest

from holdfast.storage.ledger import Ledger
from holdfast.storage.ledger.jobs import job_row
from tests.storage.ledger import processes
from tests.storage.ledger.samples import incident, register, running_job

pytestmark = pytest.mark.e2e


def test_eight_processes_make_the_tables_at_once(url: str) -> None:
    """All find a ledger that works."""
    processes.at_once(url, processes.create)
    ledger = Ledger(url)
    running_job(ledger)
    ledger.close()


def test_no_machine_is_claimed_twice(url: str, ledger: Ledger) -> None:
    """Eight jobs want two machines each of a pool of nine: four get them."""
    for number in range(9):
        register(ledger, f"m{number}")
    claims = processes.at_once(url, processes.claim_two)
    taken = [name for claim in claims for name in claim]
    assert sorted(map(len, claims)) == [0, 0, 0, 0, 2, 2, 2, 2]
    assert len(set(taken)) == len(taken) == 8


def test_no_epoch_is_given_twice(url: str, ledger: Ledger) -> None:
    """And none is left out."""
    running_job(ledger)
    given = [epoch for epochs in processes.at_once(url, processes.ten_epochs) for epoch in epochs]
    assert sorted(given) == list(range(1, 81))


def test_one_intent_wins(url: str, ledger: Ledger) -> None:
    """All processes see the same one."""
    running_job(ledger)
    incident(ledger)
    seen = processes.at_once(url, processes.begin)
    (action,) = ledger.actions("gpt-1")
    assert set(seen) == {action.intent["by"]}


def test_one_reconciler_wins(url: str, ledger: Ledger) -> None:
    """Of eight that start the next attempt."""
    running_job(ledger)
    incident(ledger)
    assert sorted(processes.at_once(url, processes.next_attempt)) == [False] * 7 + [True]
    assert ledger.incident("gpt-1").attempt == 2


def test_alerts_that_join_together_are_kept_once_each(url: str, ledger: Ledger) -> None:
    """The storm hits all gateways' threads at once."""
    running_job(ledger)
    incident(ledger)
    processes.at_once(url, processes.join)
    ranks = [alert.rank for alert in ledger.incident("gpt-1").alerts]
    assert sorted(r for r in ranks if r is not None) == [*range(10), *range(100, 108)]


def test_incidents_opened_together_have_numbers_of_their_own(url: str, ledger: Ledger) -> None:
    """One after the other."""
    running_job(ledger)
    opened = processes.at_once(url, processes.open_incident)
    assert sorted(opened) == [f"gpt-{n}" for n in range(1, 9)]


def test_busy_processes_do_not_lock_one_another_out(url: str, ledger: Ledger) -> None:
    """No call fails for a lock, and none takes as long as a process waits here: none was starved."""
    running_job(ledger)
    ledger.open_epoch("gpt", 1, 0, "v1", [], "", at=1.0)
    assert max(processes.at_once(url, processes.everything)) < processes.PATIENCE_S / 2
    assert len(ledger.alerts(limit=1000)) == 160


def test_a_process_killed_within_a_transaction_leaves_nothing_behind(url: str, ledger: Ledger) -> None:
    """Neither its change nor its lock."""
    running_job(ledger)
    here, there = processes.CONTEXT.Pipe()
    process = processes.CONTEXT.Process(target=processes.hang_in_a_transaction, args=(url, there))
    process.start()
    assert here.poll(120)
    assert ledger.job("gpt").epoch == 0
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    assert ledger.next_epoch("gpt") == 1


def test_what_is_read_together_is_of_one_moment(ledger: Ledger) -> None:
    """Another process may commit in between: a history has no action of an incident that it lacks."""
    running_job(ledger)
    with ledger._read() as session:
        before = job_row(session, "gpt").epoch
        ledger.next_epoch("gpt")
        session.expire_all()
        assert job_row(session, "gpt").epoch == before
    assert ledger.job("gpt").epoch == before + 1
