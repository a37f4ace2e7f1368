"""A polled wait notices its end soon, and polls seldom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.session.looks import pause_s

LONGEST_S = 0.1


@given(expected_s=st.floats(0, 1000), takes_s=st.floats(0, 60))
def test_a_wait_is_noticed_within_a_tenth_of_its_time(expected_s: float, takes_s: float) -> None:
    """Or of what it was expected to take; at most 0.1 s late, and with few looks however long it takes."""
    waited, looks = 0.0, 0
    while waited < takes_s:
        waited += pause_s(waited, expected_s, LONGEST_S)
        looks += 1
    late = waited - takes_s
    assert late <= max(0.00021, min(LONGEST_S, 0.101 * max(takes_s, expected_s))) + 1e-9
    assert looks <= 100 + takes_s / LONGEST_S
