"""Ranks that wait for others, by the innermost frames of real stacks; without a stack a waiting rank is not named."""

from __future__ import annotations

import pytest

from holdfast.models.agent import FlightRecord
from holdfast.policies.config.policy import Policy
from holdfast.policies.diagnose import hang_verdict
from holdfast.policies.diagnose.aggregate import aggregate
from holdfast.policies.diagnose.stacks import group_ranks
from tests.policies.diagnose.test_aggregate import REDUCE, SLEEP, dump
from tests.policies.make import job

POLICY = Policy.load().aggregate
ALONE = job(machines=4, per=1)
C10D = "torch/distributed/distributed_c10d.py"
OPERATOR = [
    ("OpOverload.redispatch", "torch/_ops.py"),
    ("make_autograd_impl.<locals>.autograd_impl", "torch/_library/autograd.py"),
    ("OpOverloadPacket.__call__", "torch/_ops.py"),
]


@pytest.mark.parametrize(
    "frames",
    [
        [*OPERATOR, ("wait_tensor", "torch/distributed/_functional_collectives.py")],
        [("Event.synchronize", "torch/cuda/streams.py")],
        [("FSDPParamGroup.wait_for_unshard", "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py")],
        [("_new_process_group_helper", C10D), ("_new_group_with_tag", C10D), ("new_group", C10D)],
        [("_store_based_barrier", C10D)],
        [("_create_c10d_store", "torch/distributed/rendezvous.py")],
    ],
)
def test_these_wait(frames: list[tuple[str, str]]) -> None:
    """So the one rank that sleeps is named, and surely."""
    stacks = [dump(0, *frames, per=1), dump(1, REDUCE, per=1), dump(2, SLEEP, per=1), dump(3, REDUCE, per=1)]
    found = aggregate(stacks, ALONE, POLICY)
    assert (found.suspects, found.confidence) == (("m2",), 0.98)


@pytest.mark.parametrize(
    "frames",
    [
        [*OPERATOR, ("linear", "torch/nn/functional.py")],
        [("Loader.synchronize", "job/data.py")],
        [("OpOverload.redispatch", "torch/_ops.py"), SLEEP, ("spin", "job/ops.py"), REDUCE],
    ],
)
def test_these_do_not(frames: list[tuple[str, str]]) -> None:
    """An operator that computes, a method of the job with such a name, an operator of the job's own."""
    (group,) = group_ranks([dump(0, *frames, per=1)], ALONE, POLICY)
    assert not group.waiting


def test_stacks_that_people_quoted() -> None:
    """Rank 0's data loader (pytorch/pytorch#87995: all others wait in all_reduce); ZeRO-3 that all wait in
    (deepspeedai/DeepSpeed#860, beside huggingface/accelerate#3104's ranks in a gather of its own thread).
    """
    queue = [("wait", "threading.py"), ("get", "queue.py"), ("__next__", "fairseq/data/iterators.py")]
    fetched = [
        ("synchronize", "torch/cuda/streams.py"),
        ("_synchronize_communication", "deepspeed/runtime/zero/stage3.py"),
        ("fetch_sub_module", "deepspeed/runtime/zero/stage3.py"),
    ]
    reduces = [dump(rank, REDUCE, per=1) for rank in (1, 2, 3)]
    assert aggregate([dump(0, *queue, per=1), *reduces], ALONE, POLICY).suspects == ("m0",)
    assert aggregate([dump(0, *fetched, per=1), *reduces], ALONE, POLICY).suspects == ()
    assert aggregate([dump(rank, *fetched, per=1) for rank in range(4)], ALONE, POLICY).suspects == ()


def test_ranks_that_wait_are_not_named_where_others_have_no_stack() -> None:
    """Ranks 2 and 3 wait for rank 4 or 5, which have no stacks; they have a group of their own with them."""
    of = job(machines=4, per=2)
    layout = of.spec.parallelism.model_copy(update={"tp": 4})
    of = of.model_copy(update={"spec": of.spec.model_copy(update={"parallelism": layout})})
    ring = ("wait", "torch/distributed/distributed_c10d.py")
    stacks = [dump(rank, ring if rank in (2, 3) else REDUCE) for rank in (0, 1, 2, 3, 6, 7)]
    full = [*stacks, *(dump(rank, REDUCE) for rank in (4, 5))]
    assert aggregate(stacks, of, POLICY).suspects == ()
    assert aggregate(full, of, POLICY).suspects == ("m1",)


def recorded(*done: int) -> list[FlightRecord]:
    """Records of four ranks that issued five all-reduces, and completed so many."""
    of = (0, 1, 2, 3)
    return [
        FlightRecord(rank=rank, group="0", ranks=of, enqueued=5, completed=number)
        for rank, number in enumerate(done)
    ]


def test_a_rank_without_a_stack_whose_record_shows_that_it_waits_is_not_named() -> None:
    """Only its own record shows where it is: in the same collective as all others, as one that waits."""
    stacks = [
        *(dump(rank, REDUCE, per=1) for rank in (0, 1, 3)),
        dump(2, per=1, frames=(), error="cannot attach"),
    ]
    found = aggregate(stacks, ALONE, POLICY)
    assert hang_verdict.verdict(found, stacks, (), ALONE, POLICY).suspects == ("m2",)
    answer = hang_verdict.verdict(found, stacks, recorded(4, 4, 4, 4), ALONE, POLICY)
    assert (answer.suspects, answer.ranks, answer.confidence) == ((), (), 0.0)
    assert "ranks 2, of which no stack could be taken, wait as their records show" in answer.evidence
    behind = [*recorded(4, 4, 4, 4)]
    behind[2] = behind[2].model_copy(update={"enqueued": 4})
    assert hang_verdict.verdict(found, stacks, behind, ALONE, POLICY).suspects == ("m2",)
