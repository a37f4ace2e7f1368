"""Verdicts on measurements of checks: the slow are named, the others never."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import Finding
from holdfast.policies.diagnose.pace import PaceLimits, slow

LIMITS = PaceLimits()


def product(machine: str, seconds: float, repeats: int = 5, **more: float) -> Finding:
    """A timed product."""
    return Finding(
        check="matmul",
        machine=machine,
        ok=True,
        value=seconds,
        unit="s",
        repeats=repeats,
        kind="H100",
        **more,
    )


def link(left: str, right: str, rate: float, repeats: int = 5) -> list[Finding]:
    """A transfer, as both sides report it."""
    known = {"check": "all_gather", "ok": True, "unit": "MB/s", "repeats": repeats, "value": rate}
    return [
        Finding(machine=left, peer=right, **known),
        Finding(machine=right, peer=left, **known),
    ]


def named(findings: Sequence[Finding]) -> set[str]:
    return slow(findings, 1.5, LIMITS)[0]


@given(st.integers(5, 40), st.floats(1e-4, 100), st.floats(1.1, 100), st.randoms(use_true_random=False))
def test_a_host_that_is_10_percent_slow_is_found_among_even_ones(
    machines: int, seconds: float, times: float, luck: random.Random
) -> None:
    """MegaScale's: measured to half a percent, whatever the size of the product; no other machine is named."""
    costs = [seconds * luck.uniform(0.995, 1.005) for _ in range(machines)]
    bad = luck.randrange(machines)
    costs[bad] = seconds * times
    assert named([product(f"m{i}", cost) for i, cost in enumerate(costs)]) == {f"m{bad}"}


@given(st.integers(3, 40), st.floats(0.0, 0.4), st.randoms(use_true_random=False))
def test_noise_alone_names_hardly_any_and_never_many(
    machines: int, noise: float, luck: random.Random
) -> None:
    """A machine that is named lies outside of the others' spread, whatever the spread."""
    costs = {f"m{i}": 1.0 + luck.uniform(0, noise) for i in range(machines)}
    found = named([product(name, cost) for name, cost in costs.items()])
    usual = median(costs.values())
    spread = median(abs(cost - usual) for cost in costs.values())
    assert 3 * len(found) <= machines
    assert all(costs[name] > min(1.5 * usual, usual + 6 * spread) for name in found)


@given(st.lists(st.floats(0.01, 100), max_size=2))
def test_too_few_machines_are_not_known(costs: list[float]) -> None:
    """The verdict states so, and no machine is named."""
    who, lines = slow([product(f"m{i}", cost) for i, cost in enumerate(costs)], 1.5, LIMITS)
    assert who == set()
    assert not costs or "not known" in lines[0]


def test_too_few_repeats_count_only_when_gross() -> None:
    """One measurement may be an accident; five times is none."""
    even = [product(f"m{i}", 1.0) for i in range(6)]
    assert named([*even, product("bad", 2.0, repeats=1)]) == set()
    assert named([*even, product("bad", 2.0)]) == {"bad"}
    assert named([*even, product("bad", 2000.0, repeats=1)]) == {"bad"}


def test_a_busy_host_is_not_judged() -> None:
    """Others use its processors: its measurements are no evidence about them."""
    who, lines = slow(
        [*(product(f"m{i}", 1.0) for i in range(6)), product("bad", 9.0, busy=0.8)], 1.5, LIMITS
    )
    assert who == set()
    assert lines == ["pace not known on bad: they are busy with other work"]


@pytest.mark.parametrize("rate", [0.05, 10.0, 90.0])
@pytest.mark.parametrize("machines", [4, 8])
def test_a_slow_link_names_its_machine_and_not_its_neighbours(machines: int, rate: float) -> None:
    """In a ring each neighbour of the slow one has another, fast pair; 2,000 times slower is one case of many."""
    pairs = [(f"m{i}", f"m{(i + 1) % machines}") for i in range(machines)]
    found = [each for pair in pairs for each in link(*pair, rate if "m2" in pair else 100.0)]
    expected = {"m2"} if machines >= 5 or rate < 60 else set()
    assert named(found) == (expected if rate < 95 else set())


def test_slower_than_it_was_itself_before_is_slow() -> None:
    """Two are too few to compare, but each knows what it measured earlier; both slower is no machine's fault."""
    well = product("m0", 1.0, usual=1.0, usual_of=9)
    assert named([well, product("m1", 1.5, usual=1.0, usual_of=9)]) == {"m1"}
    assert named([well, product("m1", 1.5, usual=1.0, usual_of=2)]) == set()
    assert named([well, product("m1", 1.5, repeats=1, usual=1.0, usual_of=9)]) == set()
    both = [product(name, 1.5, usual=1.0, usual_of=9) for name in ("m0", "m1")]
    assert named(both) == set()


def test_only_equals_are_compared() -> None:
    """Another kind of hardware, or another unit, is another race."""
    others = [product(f"m{i}", 1.0) for i in range(6)]
    assert named([*others, product("bad", 9.0).model_copy(update={"kind": "A100"})]) == set()
