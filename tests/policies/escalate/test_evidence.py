"""Evidence for the code, and for arithmetic or state."""

from __future__ import annotations

import pytest

from holdfast.models.alert import IncidentClass
from holdfast.policies.classify.signature import Position, Signature
from holdfast.policies.escalate.evidence import (
    FailureFacts,
    arithmetic_cleared,
    code_cleared,
    may_go_back,
    no_retry,
)

DAYS = 86_400.0
CRASH, USER = IncidentClass.JOB_CRASH, IncidentClass.USER_CODE_ERROR


def facts(incident_class: IncidentClass = CRASH, what: str = "SIGSEGV", **known: object) -> FailureFacts:
    signature = Signature(what=what, rank=3, machine="m1")
    return FailureFacts.model_validate(
        {"incident_class": incident_class, "signature": signature, "version": "v2", **known}
    )


@pytest.mark.parametrize(
    ("known", "cleared"),
    [
        ({"version_age_s": 10 * DAYS}, True),
        ({"version_age_s": 1 * DAYS}, False),
        ({"version_age_s": None}, False),
        ({"version_age_s": 10 * DAYS, "ranks": (3,)}, True),
        ({"version_age_s": 10 * DAYS, "ranks": (3, 5)}, False),
        ({"version_age_s": 10 * DAYS, "changed": "it was raised at data.py:33"}, False),
        ({"version_age_s": 60, "last": True}, True),
        ({"version_age_s": 60, "last": True, "again": 1}, False),
        ({"version_age_s": 60, "last": True, "fell_since": True}, False),
        ({"version_age_s": 60, "last": True, "changed": "it was raised at data.py:33"}, False),
        ({"version_age_s": 60, "last": True, "incident_class": USER}, False),
    ],
)
def test_code_that_ran_for_days_is_cleared(known: dict[str, object], cleared: bool) -> None:
    """Unless several ranks raise the same in one frame."""
    assert bool(code_cleared(facts(**known), 2 * DAYS)) is cleared


@pytest.mark.parametrize(
    ("seen", "cleared"),
    [
        (facts(what="SIGKILL", version_age_s=60.0), True),
        (facts(what="SIGTERM", version_age_s=None), True),
        (facts(what="SIGSEGV", version_age_s=60.0), False),
        (facts(what="SIGKILL", version_age_s=60.0, again=1), False),
        (facts(what="SIGKILL", version_age_s=60.0, fell_since=True), False),
        (facts(IncidentClass.HOST_PRESSURE, what="SIGKILL", version_age_s=60.0), False),  # its memory ran out
    ],
)
def test_new_code_is_not_blamed_for_a_kill_from_outside(seen: FailureFacts, cleared: bool) -> None:
    """Unless the same kill comes again, or its cause is known."""
    assert bool(code_cleared(seen, 2 * DAYS)) is cleared


@pytest.mark.parametrize(
    ("seen", "cleared"),
    [
        (facts(), True),
        (facts(again=1), False),
        (facts(what="SIGKILL", again=5), True),
        (facts(state_suspected=True), False),
        (facts(IncidentClass.NAN_LOSS), False),
        (facts(IncidentClass.SILENT_CORRUPTION), False),
    ],
)
def test_a_replay_needs_what_it_can_show(seen: FailureFacts, cleared: bool) -> None:
    """Numbers, a suspected state, or a failure that came again by itself."""
    assert bool(arithmetic_cleared(seen)) is cleared


@pytest.mark.parametrize(
    ("seen", "can_rollback", "pointless"),
    [
        (facts(USER, version_age_s=20.0), False, True),
        (facts(USER, version_age_s=20.0), True, False),
        (facts(USER, version_age_s=3600.0), False, False),
        (facts(CRASH, version_age_s=20.0), False, False),
    ],
)
def test_a_script_that_raises_at_once_is_not_retried(
    seen: FailureFacts, can_rollback: bool, pointless: bool
) -> None:
    """Its author wants to hear of it."""
    assert bool(no_retry(seen, 600.0, can_rollback)) is pointless


@pytest.mark.parametrize(("step", "pointless"), [(24, False), (0, True), (None, True)])
def test_one_that_may_skip_data_is_retried_once_it_trained(step: int | None, pointless: bool) -> None:
    """That it falls at the same data again is what shows that the data is bad."""
    seen = facts(USER, version_age_s=20.0)
    seen = seen.model_copy(update={"signature": Signature(what="ValueError", position=Position(step=step))})
    assert bool(no_retry(seen, 600.0, False, may_skip=True)) is pointless
    assert no_retry(seen, 600.0, False)


@pytest.mark.parametrize(
    ("refusal", "changed_s_ago", "may"),
    [("", None, True), ("no", None, False), ("no", 60.0, True), ("no", 10 * DAYS, False)],
)
def test_a_script_that_the_session_refuses_goes_back_only_if_it_came_while_the_job_ran(
    refusal: str, changed_s_ago: float | None, may: bool
) -> None:
    """Submitted again, the job has new code that a person chose: it is not trained with the former one."""
    seen = facts(USER, refusal=refusal, version_age_s=20.0)
    assert may_go_back(seen, changed_s_ago, 2 * DAYS) is may
    assert bool(no_retry(seen, 600.0, can_rollback=True)) is bool(refusal)
