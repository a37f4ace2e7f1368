"""Roles with more threads than there are cores."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.roles import RoleSpec
from holdfast.policies.roles.crowding import crowded


def test_the_numbers_are_in_the_warning() -> None:
    """Of the machines that may carry it, those with most cores."""
    role = RoleSpec(script="r.py", replicas=5, cpus=4, machines=2)
    warning = crowded("rollout", role, ("m0", "m1", "m2"), {"m0": 4, "m1": 8, "m2": 6})
    assert warning.startswith(
        "roles.rollout: 5 replicas x 4 cpus are 20 threads, and 2 machines that may carry them have 14 cores"
    )
    alone = crowded(
        "w", RoleSpec(script="r.py", replicas=9, own_machines=2), ("m7", "m8"), {"m7": 4, "m8": 4}
    )
    assert "2 machines that may carry them have 8 cores. Take fewer" in alone
    one = crowded("w", RoleSpec(script="r.py", replicas=3), ("m0",), {"m0": 2})
    assert "3 threads, and 1 machine that may carry them has 2 cores" in one


@pytest.mark.parametrize("cores", [{}, {"m0": 1}, {"m0": 1, "m1": 0}])
def test_no_warning_comes_where_not_all_cores_are_known(cores: dict[str, int]) -> None:
    """An agent of an older release reports none."""
    assert not crowded("w", RoleSpec(script="r.py", replicas=100), ("m0", "m1"), cores)
    assert not crowded("w", RoleSpec(script="r.py", replicas=100), (), cores)


@given(
    st.lists(st.integers(1, 64), min_size=1, max_size=8),
    st.integers(0, 300),
    st.integers(1, 8),
    st.integers(0, 8),
)
def test_a_warning_comes_when_they_are_too_many(
    cores: list[int], replicas: int, cpus: int, machines: int
) -> None:
    """And only then."""
    role = RoleSpec(script="r.py", replicas=replicas, cpus=cpus, machines=machines)
    names = [f"m{number}" for number in range(len(cores))]
    best = sum(sorted(cores)[-machines:])
    assert bool(crowded("w", role, names, dict(zip(names, cores, strict=True)))) == (replicas * cpus > best)
