"""Machines compared: digests, speeds, pairs, and the figures for large jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.agent import Frame, StackDump
from holdfast.models.alert import Finding
from holdfast.models.job import Parallelism
from holdfast.policies.diagnose import pairing
from holdfast.policies.diagnose.aggregate import aggregate
from holdfast.policies.diagnose.verdicts import judge
from tests.policies.make import job

Answer = TypeVar("Answer")


def digest(machine: str, value: str, kind: str = "gpu") -> Finding:
    return Finding(check="bitwise", machine=machine, ok=True, digest=value, kind=kind)


def cost(machine: str, seconds: float, kind: str = "gpu") -> Finding:
    return Finding(check="matmul", machine=machine, ok=True, value=seconds, kind=kind)


def test_the_minority_computes_wrongly() -> None:
    """All processes of a machine count."""
    found = judge([*(digest(f"m{i}", "a") for i in range(3)), digest("m3", "b"), digest("m3", "a")])
    assert found.suspects == ("m3",)
    assert found.confidence == 0.95


def test_a_tie_of_two_is_named_as_such() -> None:
    """Two against two: neither is accused."""
    found = judge([digest("m0", "a"), digest("m1", "b"), digest("m2", "b"), digest("m3", "a")])
    assert found.suspects == ()
    assert "a tie of two, m0, m3 against m1, m2" in found.evidence[0]


def test_many_different_results_accuse_none() -> None:
    """Without a majority nothing is known."""
    found = judge([digest(f"m{i}", str(i)) for i in range(4)])
    assert found.suspects == ()
    assert "4 different results" in found.evidence[0]


def test_only_equals_are_compared() -> None:
    """Another generation of hardware computes other bits, and that is no fault."""
    assert judge([digest("m0", "a"), digest("m1", "a"), digest("m2", "b", "older")]).suspects == ()


def test_slow_is_reported_and_accuses_only_where_asked() -> None:
    """A crash is not explained by slowness."""
    findings = [*(cost(f"m{i}", 1.0) for i in range(4)), cost("m4", 2.0)]
    assert judge(findings).suspects == ()
    assert "m4 2.0x" in judge(findings).evidence[0]
    assert judge(findings, 1.5).suspects == ("m4",)
    assert judge(findings, 2.5).suspects == ()


@given(st.lists(st.floats(0.5, 3.0), min_size=3, max_size=30))
def test_never_more_than_a_third_is_slow(costs: list[float]) -> None:
    """Beyond that the others may be fast."""
    found = judge([cost(f"m{i}", value) for i, value in enumerate(costs)], 1.5)
    assert 3 * len(found.suspects) <= len(costs)


def play(machines: int, bad: set[int], chosen: list[pairing.Pair]) -> list[Finding]:
    """Transfers: those with a bad machine fail, reported by both sides."""
    found = []
    for left, right in chosen:
        ok = not {int(left[1:]), int(right[1:])} & bad
        found += [
            Finding(check="all_gather", machine=left, peer=right, ok=ok),
            Finding(check="all_gather", machine=right, peer=left, ok=ok),
        ]
    return found


@given(st.integers(3, 30), st.data())
def test_a_second_pairing_names_all_bad_machines(machines: int, data: st.DataObject) -> None:
    """As long as some neighbours passed: adjacent bad machines hide each other in the first round only."""
    bad = data.draw(st.sets(st.integers(0, machines - 1), min_size=1, max_size=max(1, machines // 3)))
    first = play(machines, bad, pairing.neighbours([f"m{i}" for i in range(machines)]))
    results = {finding.machine for finding in first if finding.ok}
    second = play(machines, bad, pairing.again(first))
    found = judge([*first, *second])
    assert set(found.suspects) <= {f"m{i}" for i in bad}
    if results:
        assert set(found.suspects) == {f"m{i}" for i in bad}


def test_two_machines_need_a_third() -> None:
    """A standby that passes with one of them accuses the other."""
    first = play(2, {1}, pairing.neighbours(["m0", "m1"]))
    assert pairing.again(first) == []
    second = pairing.again(first, ["m7", "m8"])
    assert judge([*first, *play(2, {1}, second)]).suspects == ("m1",)


def test_a_bad_standby_accuses_none() -> None:
    """Everything fails: the standby, or both, or the network."""
    first = play(2, {1}, pairing.neighbours(["m0", "m1"]))
    assert judge([*first, *play(2, {1, 7}, pairing.again(first, ["m7"]))]).suspects == ()


def test_when_all_passes_nothing_is_paired_again() -> None:
    """The usual case costs nothing."""
    assert pairing.again(play(4, set(), pairing.neighbours([f"m{i}" for i in range(4)]))) == []


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8])
def test_neighbours_are_a_ring(count: int) -> None:
    """Each machine twice, two machines once, one alone not at all."""
    names = [f"m{i}" for i in range(count)]
    expected = {0: 0, 1: 0, 2: 1}.get(count, count)
    assert len(pairing.neighbours(names)) == expected


# Large jobs: the figures are measured by the benchmarks; here only that the answer is right and not absurdly late.


def large_stacks(ranks: int = 10_240, frames: int = 50) -> list[StackDump]:
    """One rank elsewhere, the others in a collective, stages of a pipeline at different depths."""
    base = tuple(Frame(function=f"layer_{i}", file=f"model/part_{i % 7}.py") for i in range(frames - 1))
    waiting = (Frame(function="all_reduce", file="torch/distributed/distributed_c10d.py"), *base)
    busy = (Frame(function="forward", file="train.py"), *base)
    return [
        StackDump(machine=f"m{rank // 8}", rank=rank, pid=rank, frames=busy if rank == 4242 else waiting)
        for rank in range(ranks)
    ]


def test_ten_thousand_stacks_are_grouped() -> None:
    """10,240 stacks of 50 frames: the one that differs is found."""
    big = job(machines=1280, per=8, tp=8, pp=4)
    assert big.spec.parallelism == Parallelism(tp=8, pp=4)
    stacks = large_stacks()
    found = timed(lambda: aggregate(stacks, big))
    assert found.suspects == ("m530",)


def test_twelve_hundred_machines_are_judged() -> None:
    """All checks of 1,200 machines with 8 processes each: the three bad ones are found."""
    ring = pairing.neighbours([f"m{i}" for i in range(1200)])
    findings = play(1200, {7}, ring)
    for i in range(1200):
        for _ in range(8):
            findings.append(digest(f"m{i}", "b" if i == 500 else "a"))
            findings.append(cost(f"m{i}", 9.0 if i == 900 else 1.0))
    found = timed(lambda: judge(findings, 1.5))
    assert found.suspects == ("m500", "m7", "m900")


def timed(work: Callable[[], Answer], most_s: float = 20.0) -> Answer:
    """The result of ``work``; the bound is far above its time, and there for what grows with the square."""
    started = time.thread_time()
    answer = work()
    assert time.thread_time() - started < most_s
    return answer
