"""From stacks to the machines behind a hang."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.agent import EndedPart, Frame, StackDump
from holdfast.models.job import Job
from holdfast.policies.config.policy import Policy
from holdfast.policies.diagnose.aggregate import Aggregation, aggregate
from holdfast.policies.diagnose.groups import groups, observed, place_of
from holdfast.policies.diagnose.stacks import compared
from tests.policies.make import job

POLICY = Policy.load().aggregate
WAIT = ("_engine_run_backward", "torch/autograd/graph.py")
REDUCE = ("all_reduce", "torch/distributed/distributed_c10d.py")
AGREE = ("wait", "/venv/lib/holdfast/session/agreement.py")
USER = ("train_step", "train.py")
SLEEP = ("load_batch", "data.py")


def dump(rank: int | None, *tops: tuple[str, str], per: int = 2, line: int = 1, **changes: Any) -> StackDump:
    frames = tuple(Frame(function=f, file=p, line=line) for f, p in (*tops, USER, ("<module>", "train.py")))
    facts: dict[str, Any] = {
        "machine": f"m{(rank or 0) // per}",
        "rank": rank,
        "pid": 100 + (rank or 0),
        "process_state": "S",
        "frames": frames,
    }
    return StackDump(**{**facts, **changes})


def found(stacks: list[StackDump], of: Job | None = None) -> Aggregation:
    return aggregate(stacks, of or job(), POLICY)


def test_a_stopped_process_explains_the_hang_by_itself() -> None:
    """Even though its stack is the same as all others'. That proves nothing against its machine."""
    stacks = [dump(r, WAIT, process_state="T" if r == 5 else "S") for r in range(8)]
    answer = found(stacks)
    assert (answer.outliers, answer.suspects) == ((5,), ("m2",))
    assert (answer.explained, answer.sure) == (True, False)
    assert answer.confidence > 0.9


def test_processes_that_are_stopped_everywhere_are_no_machines_fault() -> None:
    """As by a scheduler that suspends the job: there is no question about machines to evict."""
    answer = found([dump(r, WAIT, process_state="T") for r in range(8)])
    assert (answer.suspects, answer.explained, answer.over_limit) == ((), True, False)
    assert "signals from outside" in answer.reasons[-1]
    assert answer.excuse.endswith("are stopped (state T), as by a signal from outside")


def test_a_stopped_process_without_a_stack_counts_too() -> None:
    """The dumper may fail on a stopped process."""
    stacks = [dump(r, WAIT) for r in range(7)]
    stacks.append(dump(7, process_state="T", frames=(), error="cannot attach"))
    assert found(stacks).suspects == ("m3",)


@pytest.mark.parametrize(("blocked", "suspects"), [((4, 5), ("m2",)), ((2, 5), ()), (tuple(range(8)), ())])
def test_a_device_that_lets_go_no_process_is_one_machines_own(
    blocked: tuple[int, ...], suspects: tuple[str, ...]
) -> None:
    """Several machines that wait in the kernel wait for what they share; then nothing else accuses one either."""
    stacks = [dump(r, WAIT, process_state="D" if r in blocked else "S") for r in range(8)]
    answer = aggregate(stacks, job(), blocked=blocked)
    assert answer.suspects == suspects
    assert answer.sure


def test_the_one_rank_that_does_not_wait_is_sure() -> None:
    """All but one wait in a collective."""
    answer = found([dump(r, SLEEP if r == 2 else WAIT) for r in range(8)])
    assert (answer.outliers, answer.suspects) == ((2,), ("m1",))
    assert answer.confidence > 0.9
    assert "load_batch (data.py)" in answer.reasons[0]


def test_two_ranks_of_which_one_waits_are_distinguished() -> None:
    """No majority is needed when one side only waits."""
    answer = found([dump(0, REDUCE, per=1), dump(1, SLEEP, per=1)], job(machines=2, per=1))
    assert answer.suspects == ("m1",)


@pytest.mark.parametrize("machines", [2, 4])
def test_a_checkpoint_on_one_rank_only_accuses_no_machine(machines: int) -> None:
    """It waits for the others, who wait for it in their next collective: the script is named, and no machine."""
    stacks = [
        dump(0, AGREE, ("agree", AGREE[1]), ("save", "holdfast/session/saver.py"), per=1),
        *(dump(rank, REDUCE, per=1) for rank in range(1, machines)),
    ]
    answer = found(stacks, job(machines=machines, per=1))
    assert (answer.suspects, answer.sure) == ((), False)
    others = "ranks 1" if machines == 2 else "ranks 1, 2, 3"
    assert f"ranks 0 wait in Session.checkpoint() until {others} call it too" in answer.script


def test_all_in_a_checkpoint_are_not_apart() -> None:
    """Nor are those of which one is stopped."""
    stacks = [dump(rank, AGREE, process_state="T" if rank == 5 else "S") for rank in range(8)]
    answer = found(stacks)
    assert answer.suspects == ("m2",)
    assert not answer.script


def test_a_data_loaders_wait_is_no_collective() -> None:
    """The function's name alone proves nothing."""
    answer = found([dump(r, ("wait", "multiprocessing/connection.py") if r == 6 else WAIT) for r in range(8)])
    assert answer.suspects == ("m3",)


def test_a_wait_for_a_work_of_torch_is_a_wait() -> None:
    """It has no frame of its own: the line that calls it is innermost, and its rank is not elsewhere."""
    waits = dump(1, per=1)
    inner = waits.frames[0].model_copy(update={"source": "    works.pop().wait()"})
    waits = waits.model_copy(update={"frames": (inner, *waits.frames[1:])})
    others = [dump(r, REDUCE, per=1) for r in (2, 3)]
    of = job(machines=4, per=1)
    assert found([dump(0, REDUCE, per=1), waits, *others], of).suspects == ()
    assert found([dump(0, SLEEP, per=1), waits, *others], of).suspects == ("m0",)
    several = [waits.model_copy(update={"rank": rank, "machine": f"m{rank}"}) for rank in (1, 2)]
    assert found([dump(0, SLEEP, per=1), *several, dump(3, REDUCE, per=1)], of).suspects == ("m0",)


@pytest.mark.parametrize(
    "top",
    [
        ("custom_backward", "megatron/core/pipeline_parallel/schedules.py"),
        ("backward", "torch/autograd/__init__.py"),
        WAIT,
    ],
)
def test_who_calls_backwards_engine_waits(top: tuple[str, str]) -> None:
    """Megatron does by itself, as torch before 2.2: the engine's own thread is in a collective."""
    backward = dump(7, top)
    inner = backward.frames[0].model_copy(update={"source": "    Variable._execution_engine.run_backward("})
    backward = backward.model_copy(update={"frames": (inner, *backward.frames[1:])})
    assert found([*(dump(r, REDUCE) for r in range(7)), backward]).suspects == ()
    several = [backward.model_copy(update={"rank": rank, "machine": f"m{rank // 2}"}) for rank in range(1, 8)]
    assert found([dump(0, SLEEP), *several]).suspects == ("m0",)


def test_user_code_called_from_backward_does_not_wait() -> None:
    """Only the innermost frames count."""
    inner = [
        ("spin", "kernels.py"),
        ("backward", "kernels.py"),
        ("apply", "torch/autograd/function.py"),
        WAIT,
    ]
    answer = found([dump(r, *(inner if r == 1 else [WAIT])) for r in range(8)])
    assert answer.outliers == (1,)


def test_lines_do_not_split_groups() -> None:
    """Ranks inside one function may be a line apart."""
    answer = found([dump(r, WAIT, line=r) for r in range(8)])
    assert len(answer.groups) == 1
    assert answer.suspects == ()


def test_all_alike_accuses_none() -> None:
    """A common cause."""
    answer = found([dump(r, WAIT) for r in range(8)])
    assert (answer.outliers, answer.suspects, answer.confidence) == ((), (), 0.0)
    assert answer.groups[0].dominant


def test_the_minority_is_odd_when_none_waits() -> None:
    """Dominant groups are healthy."""
    answer = found([dump(r, SLEEP if r in (4, 5) else ("matmul", "model.py")) for r in range(8)])
    assert (answer.outliers, answer.suspects) == ((4, 5), ("m2",))
    assert answer.confidence < 0.9


@pytest.mark.parametrize("work", [False, True])
def test_who_waits_alone_in_a_barrier_is_not_accused(work: bool) -> None:
    """No rank passes a barrier before all have come: rank 0 is ahead, as by a branch of the script's for rank 0."""
    barrier = ("barrier", "torch/distributed/distributed_c10d.py")
    alone = dump(0, barrier, per=1)
    if work:  # torch waits there for a work that has no frame
        inner = alone.frames[0].model_copy(update={"source": "work.wait()"})
        alone = alone.model_copy(update={"frames": (inner, *alone.frames[1:])})
    answer = found([alone, *(dump(r, per=1) for r in range(1, 4))], job(machines=4, per=1))
    assert (answer.suspects, answer.outliers) == ((), ())
    assert "ranks 0 wait in a barrier for the others, which are in train_step (train.py)" in answer.reasons[0]
    one_more = [alone, dump(1, per=1), dump(2, SLEEP, per=1), *(dump(r, per=1) for r in range(3, 6))]
    assert found(one_more, job(machines=6, per=1)).suspects == ("m2",)


def test_who_waits_elsewhere_is_not_accused_when_all_wait() -> None:
    """One link of a ring is dead: some ranks are a collective ahead, and whose link it is cannot be known."""
    stacks = [dump(r, REDUCE if r == 0 else WAIT, per=1) for r in range(3)]
    answer = found(stacks, job(machines=3, per=1))
    assert (answer.outliers, answer.suspects) == ((0,), ())
    assert "any of them may be the cause" in answer.reasons[0]
    pair = [dump(r, REDUCE if r in (2, 5) else WAIT) for r in range(8)]
    assert found(pair).suspects == ()


def test_who_waits_in_a_group_of_its_own_is_accused_with_it() -> None:
    """All wait, but the outliers for each other: ranks of one tensor-parallel group on one machine."""
    stacks = [dump(r, REDUCE if r in (2, 3) else WAIT) for r in range(8)]
    assert found(stacks, job(tp=2)).suspects == ("m1",)


def test_pipeline_stages_may_differ() -> None:
    """Each stage is compared with itself only."""
    of = job(machines=4, per=2, pp=2)
    stacks = [dump(r, ("stage0" if r < 4 else "stage1", "model.py")) for r in range(8)]
    assert found(stacks, of).suspects == ()
    stacks[6] = dump(6, SLEEP)
    assert found(stacks, of).suspects == ("m3",)


def test_the_shared_parallel_group_is_over_evicted_within_the_limit() -> None:
    """Outliers in two stages of one pipeline: all machines of that pipeline go."""
    of = job(machines=16, per=2, tp=2, pp=4)
    # rank = (pp * 4 + dp) * 2 + tp; pipeline dp = 1: machines m1, m5, m9, m13.
    stacks = [dump(r, SLEEP if r in (2, 10) else ("matmul", "model.py")) for r in range(32)]
    answer = found(stacks, of)
    assert answer.shared_group.startswith("pp ")
    assert answer.suspects == ("m1", "m5", "m9", "m13")
    assert len(answer.suspects) <= POLICY.limit(16)


GATHER = ("all_gather_into_tensor", "torch/distributed/distributed_c10d.py")
SEND = ("isend", "torch/distributed/distributed_c10d.py")
RECV = ("batch_isend_irecv", "torch/distributed/distributed_c10d.py")


def figure_7(pipeline: int, of: Job) -> list[StackDump]:
    """ByteRobust figure 7: machines gather; those of one pipeline send and receive, but its last one gathers too.

    Two ranks of a tensor-parallel group on each machine, four stages, four pipelines.
    """
    world, layout = of.spec.world_size, of.spec.parallelism
    tops = {0: SEND, 1: RECV, 2: RECV}
    return [
        dump(r, tops.get(at.pp, GATHER) if at.dp == pipeline else GATHER)
        for r in range(world)
        if (at := place_of(r, world, layout))
    ]


@pytest.mark.parametrize("pipeline", range(4))
@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "tp-pp-dp-cp-ep", "tp-ep-pp-cp-dp"])
def test_a_pipeline_of_machines_with_several_ranks_goes_as_a_whole(order: str, pipeline: int) -> None:
    """Also its machine that looks like all others, and no other one."""
    of = job(machines=16, per=2, tp=2, pp=4, order=order)
    world, layout = of.spec.world_size, of.spec.parallelism
    expected = {of.machine_of(r) for r in range(world) if place_of(r, world, layout).dp == pipeline}
    answer = found(figure_7(pipeline, of), of)
    assert (set(answer.suspects), len(answer.suspects)) == (expected, 4)
    assert answer.shared_group.startswith("pp ")


def test_a_pipeline_is_known_from_the_jobs_own_groups() -> None:
    """The job file does not declare it; its processes show it."""
    layout = job(machines=16, per=2, tp=2, pp=4)
    plain = job(machines=16, per=2)
    stacks = figure_7(1, layout)
    assert found(stacks, plain).suspects == ()
    made = observed((group.ranks for group in groups(32, layout.spec.parallelism)), 32)
    assert set(aggregate(stacks, plain, POLICY, made=made).suspects) == {"m1", "m5", "m9", "m13"}


@given(st.data())
def test_outliers_of_one_group_of_machines_evict_exactly_these(data: st.DataObject) -> None:
    """Whatever the axes' order: two or more machines of a pipeline stand out, at least one of its stages on each."""
    order = data.draw(st.sampled_from(["tp-cp-ep-dp-pp", "tp-pp-dp-cp-ep"]))
    of = job(machines=16, per=2, tp=2, pp=4, order=order)
    world, layout = of.spec.world_size, of.spec.parallelism
    pipeline = data.draw(st.integers(0, 3))
    stages = data.draw(st.sets(st.integers(0, 3), min_size=2))
    both = data.draw(st.booleans())
    stacks = []
    for r in range(world):
        at = place_of(r, world, layout)
        odd = at.dp == pipeline and at.pp in stages and (both or at.tp == 0)
        stacks.append(dump(r, RECV if odd else GATHER))
    expected = {of.machine_of(r) for r in range(world) if place_of(r, world, layout).dp == pipeline}
    assert set(found(stacks, of).suspects) == expected


def test_two_ranks_of_one_machine_in_different_groups_accuse_no_other_machine() -> None:
    """All wait; that the machine's pipelines lead to another one does not make that suspect."""
    of = job(machines=4, per=2, pp=2)
    assert found([dump(r, SEND if r in (2, 3) else GATHER) for r in range(8)], of).suspects == ()


def test_a_group_beyond_the_limit_leaves_the_outliers_own_machines() -> None:
    """Data parallelism: the shared group is all ranks."""
    stacks = [dump(r, SLEEP if r in (0, 6) else ("matmul", "model.py")) for r in range(32)]
    answer = found(stacks, job(machines=16))
    assert answer.suspects == ("m0", "m3")
    assert answer.shared_group == ""


def test_more_outliers_than_the_limit_ask_a_human() -> None:
    """Half of a small job is never evicted on stacks."""
    stacks = [dump(r, SLEEP if r in (0, 2, 4) else ("matmul", "model.py")) for r in range(8)]
    answer = found(stacks)
    assert answer.over_limit
    assert answer.suspects == ()
    assert answer.outliers == (0, 2, 4)
    assert "a human decides" in answer.reasons[-1]


def test_a_child_process_is_looked_at_when_the_ranks_agree() -> None:
    """A data loader that hangs on one machine."""
    stacks = [dump(r, ("get", "queue.py")) for r in range(8)]
    for r in range(8):
        stacks += [dump(r, ("read" if r == 3 else "poll", "loader.py"), child=True, pid=900 + r)]
    answer = found(stacks)
    assert answer.suspects == ("m1",)
    assert answer.reasons[0].startswith("child processes")


def test_ranks_without_a_stack_are_odd_when_they_are_few() -> None:
    """The only ones that could not be asked."""
    assert found([dump(r, WAIT) for r in range(6)]).suspects == ("m3",)
    assert found([dump(r, WAIT) for r in range(2)]).suspects == ()
    assert found([]).reasons == ("no stacks",)


def test_other_threads_and_unknown_ranks_do_not_confuse() -> None:
    """The main thread speaks for its rank."""
    stacks = [dump(r, WAIT) for r in range(8)]
    stacks += [dump(r, (f"worker{r}", "pool.py"), thread="Thread-1") for r in range(8)]
    stacks += [dump(99, SLEEP), dump(None, SLEEP)]
    assert found(stacks).outliers == ()


THREADS = st.tuples(
    st.integers(0, 7),
    st.sampled_from(("MainThread", "Thread-1", "Thread-2")),
    st.booleans(),
    st.sampled_from((WAIT, REDUCE, AGREE, SLEEP, None)),
)


@given(st.lists(THREADS, max_size=30))
def test_frames_that_are_left_out_change_no_analysis(
    dumps: list[tuple[int, str, bool, tuple[str, str] | None]],
) -> None:
    """Those of other threads than the main ones: of a thousand machines they are gigabytes."""
    stacks = [
        dump(rank, top, thread=thread, child=child)
        if top
        else dump(rank, thread=thread, child=child, frames=())
        for rank, thread, child, top in dumps
    ]
    machines = [[each for each in stacks if each.machine == f"m{slot}"] for slot in range(4)]
    whole = found([each for mine in machines for each in mine])
    assert found([each for mine in machines for each in compared(mine)]) == whole


def test_the_packaged_policy_is_the_default() -> None:
    """For callers without one."""
    assert aggregate([dump(0, WAIT)], job()) == found([dump(0, WAIT)])


def test_one_of_10240_ranks_is_found() -> None:
    """The size to design for."""
    deep = [(f"layer{i}", "model.py") for i in range(47)]
    stacks = [dump(r, SLEEP if r == 4711 else WAIT, *deep, per=8) for r in range(10_240)]
    of = job(machines=1280, per=8, tp=8, pp=8)
    answer = found(stacks, of)
    assert answer.suspects == (f"m{4711 // 8}",)


def ended(rank: int, own: bool = True) -> EndedPart:
    return EndedPart(
        part=f"thread reader {rank}", error="ValueError: bad record", place="data.py:31", own=own
    )


def test_a_rank_whose_thread_ended_is_excused() -> None:
    """It stands out by the job's own doing; what is seen stays to be read."""
    stacks = [dump(r, SLEEP if r == 2 else WAIT, ended=ended(2) if r == 2 else None) for r in range(8)]
    answer = found(stacks)
    assert answer.suspects == ("m1",)
    assert answer.excuse.startswith("thread reader 2 of rank 2 ended by ValueError: bad record (data.py:31)")


def test_a_rank_in_a_debugger_accuses_no_machine() -> None:
    """A second look with gdb on the same day cost the machine."""
    stacks = [dump(r, SLEEP if r == 2 else WAIT, process_state="t" if r == 2 else "S") for r in range(8)]
    answer = found(stacks)
    assert answer.outliers == (2,)
    assert answer.excuse == "rank 2 is held by a debugger (state t): no machine is at fault; detach it"
    beside = [dump(r, SLEEP if r in (2, 3) else WAIT, process_state="t" if r == 2 else "S") for r in range(8)]
    assert (found(beside).outliers, found(beside).excuse) == ((2, 3), "")


@pytest.mark.parametrize(
    ("where", "own", "stopped"),
    [((3,), True, False), ((), True, False), ((2,), False, False), ((2,), True, True)],
)
def test_what_excuses_no_machine(where: tuple[int, ...], own: bool, stopped: bool) -> None:
    """A thread of another rank; an exception that a bad disk may raise; a process that is stopped besides."""
    stacks = [
        dump(
            r,
            SLEEP if r == 2 else WAIT,
            ended=ended(r, own) if r in where else None,
            process_state="T" if stopped and r == 2 else "S",
        )
        for r in range(8)
    ]
    answer = found(stacks)
    assert (answer.suspects, answer.excuse) == (("m1",), "")
    assert len([line for line in answer.reasons if "ended by" in line]) == len(where)


def test_threads_of_all_ranks_are_named_in_few_lines() -> None:
    """No rank stands out: the script is named."""
    answer = found([dump(r, WAIT, ended=ended(r)) for r in range(8)])
    assert answer.suspects == ()
    assert "reader 2 of rank 2" in answer.script
    assert answer.script.endswith("so did parts of 5 more ranks")
