"""Time of a role's replicas: never more than was wanted, whatever the clock does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.roles import RoleTime
from holdfast.policies.accounting.role_time import LONGEST_LOOK_S, after

LOOKS = st.lists(st.tuples(st.floats(-10, 10), st.integers(0, 5), st.integers(0, 8)))


def test_two_replicas_of_three_for_a_second() -> None:
    assert after(RoleTime(), 1.0, 3, 2) == RoleTime(wanted_s=3.0, running_s=2.0)
    assert RoleTime().share is None


def test_a_step_of_the_clock_and_a_gateway_that_was_away_count_nothing() -> None:
    for seconds in (-1.0, 0.0, LONGEST_LOOK_S + 1):
        assert after(RoleTime(), seconds, 2, 2) == RoleTime()


@given(LOOKS)
def test_the_share_is_one_of_what_was_wanted(looks: list[tuple[float, int, int]]) -> None:
    time = RoleTime()
    for look in looks:
        time = after(time, *look)
    assert time.share is None or 0 <= time.share <= 1
