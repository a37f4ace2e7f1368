"""One playbook acts on a job, one gateway leads, whichever process asks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.clock import FakeClock
from holdfast.errors import RefusedError, StaleError, UnavailableError
from holdfast.models.alert import IncidentState
from holdfast.models.job import JobState
from holdfast.storage.ledger import Ledger
from holdfast.storage.ledger.schema import JobLeaseRow
from tests.storage.ledger import processes
from tests.storage.ledger.samples import incident, running_job


@pytest.fixture
def gpt(ledger: Ledger) -> Ledger:
    """A ledger with a job and one open incident, gpt-1."""
    running_job(ledger)
    incident(ledger)
    return ledger


def expire(ledger: Ledger) -> None:
    """As if nothing had been renewed for long."""
    with ledger._write() as session:
        for row in session.query(JobLeaseRow):
            row.until = 0.0


def test_a_second_run_of_the_same_attempt_is_refused(gpt: Ledger) -> None:
    """With the holder's name in the error."""
    taken = gpt.take_job("gpt-1", 1, "run-a", "a", 60)
    assert (taken.job, taken.holder, taken.live) == ("gpt", "a", True)
    with pytest.raises(RefusedError, match=r"run run-a of gpt-1 \(attempt 1, a\) acts on it"):
        gpt.take_job("gpt-1", 1, "run-b", "b", 60)
    gpt.release_job("gpt", "a")
    assert gpt.take_job("gpt-1", 1, "run-b", "b", 60).holder == "b"


def test_a_run_that_renews_no_more_loses_it(gpt: Ledger) -> None:
    """It cannot act any more, nor renew, nor release what another one holds."""
    gpt.take_job("gpt-1", 1, "run-a", "a", 60)
    expire(gpt)
    lease = gpt.job_lease("gpt")
    assert lease is not None
    assert not lease.live
    gpt.begin("gpt-1", 1, "pause", "pause", {}, holder="a")  # no other took it: still its own
    gpt.take_job("gpt-1", 1, "run-b", "b", 60)
    with pytest.raises(StaleError, match=r"a may not act on it any more, run run-b \(b\) does"):
        gpt.begin("gpt-1", 1, "evict:m0", "evict", {}, holder="a")
    with pytest.raises(StaleError):
        gpt.renew_job("gpt", "a", 60)
    gpt.release_job("gpt", "a")
    lease = gpt.job_lease("gpt")
    assert lease is not None
    assert lease.holder == "b"
    assert [action.key for action in gpt.actions("gpt-1")] == ["pause"]


WRITES: dict[str, Callable[[Ledger], object]] = {
    "next_epoch": lambda ledger: ledger.next_epoch("gpt"),
    "open_epoch": lambda ledger: ledger.open_epoch("gpt", 9, 0, "v1", ["m0"], "asleep until now"),
    "close_epoch": lambda ledger: ledger.close_epoch("gpt", 1, "asleep until now"),
    "set_job": lambda ledger: ledger.set_job("gpt", state=JobState.RUNNING),
    "set_pending_version": lambda ledger: ledger.set_pending_version("gpt", None),
    "claim_standbys": lambda ledger: ledger.claim_standbys("gpt", 1),
    "set_incident": lambda ledger: ledger.set_incident(
        "gpt-1", state=IncidentState.RECOVERED, summary="asleep"
    ),
    "end_incident": lambda ledger: ledger.end_incident("gpt-1", IncidentState.RECOVERED, "asleep", 1.0),
    "give_up": lambda ledger: ledger.give_up("gpt-1", "asleep until now"),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_run_that_was_asleep_writes_nothing(gpt: Ledger, write: str) -> None:
    """Writes that it began before another run took over are refused whole; the other one's are not."""
    gpt.take_job("gpt-1", 1, "run-a", "a", 60)
    asleep = gpt.holding("gpt-1", "gpt", "a")
    asleep.set_job("gpt", state=JobState.RECOVERING)
    gpt.next_attempt("gpt-1", 1)
    gpt.take_job("gpt-1", 2, "run-b", "b", 60)
    before = (gpt.job("gpt"), gpt.incident("gpt-1"), gpt.machines(), gpt.epochs("gpt"))
    with pytest.raises(StaleError, match=r"a may not act on it any more, run run-b \(b\) does"):
        WRITES[write](asleep)
    assert (gpt.job("gpt"), gpt.incident("gpt-1"), gpt.machines(), gpt.epochs("gpt")) == before
    assert asleep.job("gpt") == before[0]
    gpt.holding("gpt-1", "gpt", "b").set_job("gpt", state=JobState.RUNNING)


def test_a_newer_attempt_takes_over_at_once(gpt: Ledger) -> None:
    """The reconciler has judged the older one dead; that one is fenced."""
    gpt.take_job("gpt-1", 1, "run-a", "a", 60)
    gpt.next_attempt("gpt-1", 1)
    assert gpt.take_job("gpt-1", 2, "run-b", "b", 60).attempt == 2
    with pytest.raises(StaleError):
        gpt.take_job("gpt-1", 1, "run-a", "a", 60)


def test_a_run_that_was_suspended_takes_it_again(gpt: Ledger) -> None:
    """In another process; of the former one nothing may act."""
    gpt.take_job("gpt-1", 1, "run-a", "a", 60)
    gpt.take_job("gpt-1", 1, "run-a", "a2", 60)
    with pytest.raises(StaleError):
        gpt.begin("gpt-1", 1, "pause", "pause", {}, holder="a")


def test_the_lease_of_a_closed_incident_holds_no_one_up(gpt: Ledger) -> None:
    """Its run only writes its report."""
    gpt.take_job("gpt-1", 1, "run-a", "a", 60)
    incident(gpt)
    with pytest.raises(RefusedError):
        gpt.take_job("gpt-2", 1, "run-b", "b", 60)
    gpt.set_incident("gpt-1", state=IncidentState.RECOVERED)
    assert gpt.take_job("gpt-2", 1, "run-b", "b", 60).incident_id == "gpt-2"


def test_one_gateway_leads(ledger: Ledger, clock: FakeClock) -> None:
    """Until it resigns, or gave no sign of life since another saw it; the token shows every change."""
    assert ledger.lead("g1", "http://g1").holder == "g1"
    assert ledger.lead("g2", "http://g2").url == "http://g1"
    ledger.resign("g2")
    assert ledger.lead("g2", "http://g2").holder == "g1"
    ledger.resign("g1")
    second = ledger.lead("g2", "http://g2")
    assert (second.holder, second.token) == ("g2", 2)
    assert ledger.lead("g1", "http://g1", second).holder == "g1"
    third = ledger.lead("g1", "http://g1")
    assert (third.holder, third.token) == ("g1", 3)
    # It lives: what g2 saw is not the last that was heard of it.
    ledger.lead("g1", "http://g1")
    assert ledger.lead("g2", "http://g2", third).holder == "g1"
    assert ledger.lead("g2", "http://g2", second).holder == "g1"


def test_a_gateway_that_was_asleep_writes_nothing(url: str, ledger: Ledger) -> None:
    """Another one leads meanwhile: each of its writes is refused in the database, not by a look before."""
    running_job(ledger)
    asleep = Ledger(url)
    seen = asleep.lead("g1", "")
    asleep.write_only_while_leading("g1")
    incident(asleep)
    ledger.lead("g2", "", seen)
    with pytest.raises(UnavailableError, match="gateway g1 does not lead: g2 does"):
        incident(asleep)
    assert len(asleep.incidents()) == 1
    asleep.close()


@pytest.mark.e2e
def test_of_eight_workers_one_acts(url: str, gpt: Ledger) -> None:
    """All start a run of the same incident at the same moment; one gets the lease, and acts."""
    acted = processes.at_once(url, processes.take_and_act)
    assert sorted(acted) == [False] * 7 + [True]
    (action,) = gpt.actions("gpt-1")
    lease = gpt.job_lease("gpt")
    assert lease is not None
    assert action.intent["by"] == lease.holder


@pytest.mark.e2e
def test_of_eight_gateways_one_leads(url: str, gpt: Ledger) -> None:
    """And all of them know which."""
    leading = processes.at_once(url, processes.lead)
    assert len(set(leading)) == 1
