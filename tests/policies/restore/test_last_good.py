"""The last good step that alerts leave."""

from __future__ import annotations

from holdfast.models.alert import AlertKind
from holdfast.policies.restore import last_good
from tests.policies.make import alert, rank_exit

NAN = alert(AlertKind.NON_FINITE, rank=0, evidence={"step": 15, "metric": "loss"})


def test_the_earliest_bound_counts() -> None:
    """The step before the first bad one; the last at which replicas agreed."""
    later = alert(AlertKind.NON_FINITE, rank=1, evidence={"step": 17})
    differs = alert(AlertKind.REPLICA_DIFFERS, evidence={"step": 16, "last_good_step": 8})
    assert last_good.earliest_named([later, NAN]) == 14
    assert last_good.earliest_named([NAN, differs]) == 8


def test_alerts_without_a_step_leave_everything() -> None:
    assert last_good.earliest_named([]) is None
    assert last_good.earliest_named([rank_exit(0), alert(AlertKind.NON_FINITE, rank=0)]) is None
    assert last_good.earliest_named([alert(AlertKind.METRIC_JUMP, evidence={"step": 9})]) is None


def test_a_jump_counts_where_it_is_asked_for() -> None:
    """It is reported at the second high step; the earliest report of several counts."""
    jumps = [alert(AlertKind.METRIC_JUMP, rank=rank, evidence={"step": 21 - rank}) for rank in (0, 1)]
    assert last_good.before_jump([NAN, *jumps], 2) == 18
    assert last_good.before_jump([alert(AlertKind.METRIC_JUMP, evidence={"step": 1})], 2) == 0
    assert last_good.before_jump([NAN, alert(AlertKind.METRIC_JUMP)], 2) is None


def test_a_number_of_an_earlier_step_that_joins_later_counts() -> None:
    """Ranks report in any order, and the incident is taken up at the first report."""
    earlier = alert(AlertKind.NON_FINITE, rank=2, evidence={"step": 10})
    assert last_good.bound([NAN, earlier], 14, by_hand=False) == 9
    assert last_good.bound([NAN], 0, by_hand=False) == 0
    assert last_good.bound([NAN], None, by_hand=False) == 14
    assert last_good.bound([], None, by_hand=False) is None


def test_a_persons_bound_stands() -> None:
    """Also where the alerts leave less, or more."""
    assert last_good.bound([NAN], 20, by_hand=True) == 20
    assert last_good.bound([NAN], 3, by_hand=True) == 3
