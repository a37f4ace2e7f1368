"""The one line about an incident: what broke, and what stops the job now."""

from __future__ import annotations

from typing import Any

from holdfast.models.alert import Alert, AlertKind, Incident, IncidentClass, IncidentState
from holdfast.policies.classify import in_words


def ended(rank: int, epoch: int, **evidence: Any) -> Alert:
    return Alert(
        kind=AlertKind.RANK_EXIT,
        job="gpt",
        epoch=epoch,
        machine=f"m{rank}",
        rank=rank,
        at=float(epoch),
        evidence=evidence,
    )


def incident(*alerts: Alert, reason: str, rank: int | None = None) -> Incident:
    return Incident(
        id="gpt-1",
        job="gpt",
        epoch=1,
        incident_class=IncidentClass.JOB_CRASH,
        state=IncidentState.OPEN,
        machine=None,
        rank=rank,
        reasons=(reason,),
        alerts=alerts,
        detected_at=0.0,
        opened_at=0.0,
    )


WORKER = {"error_type": "RuntimeError", "message": "DataLoader worker (pid 7) exited unexpectedly\nTraceback"}
PORT = {"error_type": "OSError", "message": "[Errno 98] Address already in use"}


def test_the_message_of_the_exception_is_given_by_its_first_line() -> None:
    """`RuntimeError` alone is no explanation."""
    found = incident(ended(2, 1, **WORKER), reason="rank 2 on m2 ended with RuntimeError", rank=2)
    assert in_words.cause(found) == (
        "rank 2 on m2 ended with RuntimeError (DataLoader worker (pid 7) exited unexpectedly)"
    )


def test_a_message_that_the_reason_has_is_not_repeated() -> None:
    """The Session's refusal is its reason."""
    found = incident(ended(0, 1, **PORT), reason="[Errno 98] Address already in use", rank=0)
    assert in_words.cause(found) == "[Errno 98] Address already in use"


def test_what_stops_the_job_now_is_named_where_it_is_another_failure() -> None:
    """The incident was opened for a loss; since then a port is taken."""
    lost = ended(1, 3, error_type="RuntimeError", message="Connection closed by peer", cascade=True)
    found = incident(lost, ended(0, 3, **PORT), ended(1, 2, signal="SIGKILL"), reason="metric jump of loss")
    assert in_words.since(found) == (
        "rank 0 on m0 ended with OSError ([Errno 98] Address already in use) in epoch 3"
    )


def test_the_same_failure_again_is_not_reported_twice() -> None:
    """Nor is there anything to report before the job was started again."""
    assert in_words.since(incident(ended(0, 1, **PORT), reason="x")) == ""
    assert in_words.since(incident(ended(0, 1, **PORT), ended(1, 2, **PORT), reason="x")) == ""


def test_a_signal_that_arrives_late_goes_before_the_exception_that_it_led_to() -> None:
    """The exception is reported as well: it is what people saw first. One with no such peer is reported alone."""
    first, killed = (
        ended(5, 1, error_type="RuntimeError", message="broken pipe"),
        ended(3, 1, signal="SIGSEGV"),
    )
    reason = "rank 5 on m5 ended with RuntimeError"
    assert in_words.cause(incident(first, killed, reason=reason, rank=5)) == (
        "rank 3 on m3 was killed by SIGSEGV; reported before: rank 5 on m5 ended with RuntimeError (broken pipe)"
    )
    other = ended(3, 1, error_type="ValueError")
    later = ended(3, 2, signal="SIGSEGV")
    for beside in (other, later):
        assert in_words.cause(incident(first, beside, reason=reason, rank=5)) == f"{reason} (broken pipe)"


def test_ranks_that_were_killed_together_are_all_named() -> None:
    """Whichever was heard first, also one that waited for its next epoch; a long list is cut."""
    reason = "rank 3 on m3 was killed by SIGKILL"
    first = ended(3, 1, signal="SIGKILL")
    others = ended(5, 1, signal="SIGKILL"), ended(6, 1, signal="SIGKILL", waited=True)
    assert in_words.cause(incident(first, *others, reason=reason, rank=3)) == (
        "rank 3 on m3 was killed by SIGKILL, as were rank 5 on m5 and rank 6 on m6"
    )
    odd = ended(7, 1, signal="SIGSEGV")
    assert in_words.cause(incident(first, odd, others[0], reason=reason, rank=3)) == (
        "rank 3 on m3 was killed by SIGKILL, as was rank 5 on m5, and rank 7 on m7 by SIGSEGV"
    )
    many = [ended(rank, 1, signal="SIGKILL") for rank in range(4, 20)]
    assert in_words.cause(incident(first, *many, reason=reason, rank=3)) == (
        "rank 3 on m3 was killed by SIGKILL, as were rank 4 on m4, rank 5 on m5, rank 6 on m6 and 13 more"
    )
    later, echo = ended(5, 2, signal="SIGKILL"), ended(6, 1, cascade=True)
    assert in_words.cause(incident(first, later, echo, reason=reason, rank=3)) == reason
