"""Circular waits of ranks, and records of so many ranks that only linear algorithms finish in time."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.agent import FlightRecord
from holdfast.models.job import Job, JobSpec, JobState, Parallelism
from holdfast.policies.config.policy import Policy
from holdfast.policies.diagnose import flight
from holdfast.policies.diagnose.circles import on_circles

MACHINES = 300
RANKS = 8 * MACHINES


def _reached(waits: list[tuple[int, frozenset[int]]], start: int) -> set[int]:
    found: set[int] = set()
    ahead = [start]
    while ahead:
        at = ahead.pop()
        new = {rank for waiting, others in waits if waiting == at for rank in others} - found
        found |= new
        ahead += new
    return found


@given(st.lists(st.tuples(st.integers(0, 6), st.frozensets(st.integers(0, 6), min_size=1)), max_size=8))
def test_a_rank_is_on_a_circle_when_it_is_reached_from_itself(
    waits: list[tuple[int, frozenset[int]]],
) -> None:
    """Against a walk from each rank."""
    assert on_circles(waits) == {rank for rank in range(7) if rank in _reached(waits, rank)}


def test_records_of_thousands_of_ranks_are_analysed_in_seconds() -> None:
    """All wait in one collective of all ranks: it took hours at 9,600, when each was compared with each other."""
    world = tuple(range(RANKS))
    recent = dict.fromkeys(range(93, 101), "all_reduce 1024")
    records = [
        record
        for rank in world
        for record in (
            FlightRecord.model_construct(
                rank=rank, group="0", ranks=world, backend="nccl", enqueued=100, completed=99, recent=recent
            ),
            FlightRecord(
                rank=rank,
                group=f"tp{rank // 8}",
                ranks=world[rank // 8 * 8 :][:8],
                backend="nccl",
                enqueued=100,
                completed=100,
                recent=recent,
            ),
        )
    ]
    job = Job(
        spec=JobSpec(
            name="gpt", script="t.py", machines=MACHINES, ranks_per_machine=8, parallelism=Parallelism(tp=8)
        ),
        state=JobState.RUNNING,
        epoch=1,
        code_version="v1",
        machines=tuple(f"m{slot}" for slot in range(MACHINES)),
        submitted_at=0.0,
    )
    began = time.process_time()
    found = flight.analyse(records, job, Policy.load().aggregate)
    assert time.process_time() - began < 5.0
    assert found.waiting == world
    assert found.reasons == ("all ranks are at the same collective of every group",)
