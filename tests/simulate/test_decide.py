"""The simulator passes the policies only a part of the facts: decisions equal those with all facts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import IncidentClass, Rung
from holdfast.models.checkpoint import RemoteCheckpoint, Tier
from holdfast.models.job import Job, JobState, Parallelism
from holdfast.policies.config.policy import Policy
from holdfast.policies.detect.standing_out import Accusation
from holdfast.policies.diagnose import slow_vote
from holdfast.policies.diagnose.aggregate import aggregate
from holdfast.policies.escalate.ladder import PastIncident
from holdfast.simulate import decide
from holdfast.simulate.decide import Judge, Judgement
from holdfast.simulate.scenario import Strategy, Variant
from tests.simulate.make import DEFAULT, scenario

POLICY = Policy.load()


@given(
    st.integers(2, 12),
    st.sets(st.integers(0, 11), max_size=6),
    st.integers(0, 50),
    st.integers(0, 50),
    st.none() | st.integers(0, 50),
)
def test_a_restore_plan_for_the_lost_is_that_for_all(
    machines: int, lost: set[int], position: int, remote: int, bound: int | None
) -> None:
    """Every machine keeps its own and one other's state; some are lost."""
    peers = {slot: (slot + 1) % machines for slot in range(machines)}
    gone = frozenset(slot for slot in lost if slot < machines)
    remotes = [RemoteCheckpoint(job="sim", step=remote, epoch=1, world_size=1, key="x")] if remote else []
    part = decide.restore_few(peers, gone, position, remotes, bound)
    full = decide._choose(range(machines), peers, gone, (position, remotes, bound))
    assert (part.step, part.tier) == (full.step, full.tier)


@pytest.mark.parametrize("shows", ["one", "group", "none"])
@pytest.mark.parametrize(
    ("tp", "pp", "machines"), [(8, 4, 64), (4, 2, 24), (16, 4, 64), (1, 1, 24), (2, 8, 32)]
)
def test_an_aggregation_of_slices_is_that_of_the_job(shows: str, tp: int, pp: int, machines: int) -> None:
    """The same machines of the same columns, whatever the parallelism."""
    what = scenario(machines=machines, parallelism=Parallelism(tp=tp, pp=pp), variants=(Variant(),))
    judge = Judge(what, what.variants[0], POLICY)
    spec = decide.spec_of(what, machines)
    job = Job(
        spec=spec,
        state=JobState.RUNNING,
        epoch=1,
        code_version="v1",
        machines=decide.names(machines),
        submitted_at=0.0,
    )
    for slot in range(machines):
        full = aggregate(decide.stacks(spec, slot, shows), job, POLICY.aggregate)
        voted = slow_vote.decide([full] * 5, job, POLICY.aggregate)
        assert sorted(judge.aggregate(slot, shows, rounds=5)) == sorted(int(n[1:]) for n in voted.suspects)
        assert sorted(judge.aggregate(slot, shows)) == sorted(int(name[1:]) for name in full.suspects), slot


def judge_of(**changes: bool) -> Judge:
    variant = Variant.model_validate({"strategy": Strategy.POOL, **changes})
    return Judge(DEFAULT, variant, POLICY)


def test_every_symptom_is_classified_by_the_policy_in_force() -> None:
    """Sure signs name their machine; each class has a ladder."""
    judge = judge_of()
    seen = {name: judge.judge(symptom, {"m7": 7}, 10.0) for name, symptom in DEFAULT.symptoms.items()}
    classes = {name: found.incident_class for name, found in seen.items()}
    assert classes["gpu_unavailable"] is classes["os_kernel_panic"] is IncidentClass.MACHINE_FAULT
    assert classes["job_hang"] is IncidentClass.JOB_HANG
    assert classes["mfu_decline"] is IncidentClass.FAIL_SLOW
    assert classes["nan_value"] is IncidentClass.NAN_LOSS
    assert classes["external_service_error"] is IncidentClass.EXTERNAL_SERVICE
    assert classes["code_or_data_adjustment"] is IncidentClass.CODE_UPDATE
    assert seen["gpu_unavailable"].sure == ("m7",)
    assert seen["cpu_overload"].accused == ("m7",)
    for found in seen.values():
        judge.ladder(found.incident_class)


def test_a_whole_switch_is_more_than_the_policy_accuses() -> None:
    """32 machines at once: a common cause is likely, so none of them is surely at fault by its alert."""
    panic = DEFAULT.symptoms["os_kernel_panic"]
    found = judge_of().judge(panic, {f"m{n}": n for n in range(32)}, 10.0)
    assert (found.sure, found.accused) == ((), ())


def test_replay_finds_a_machine_and_does_not_blame_one_for_the_code() -> None:
    """A phase that did not reproduce it is run again; when all groups fail it is the code."""
    judge = judge_of()
    assert judge.replay([77], lambda: True) == ((77,), False, 1)
    draws = iter([True, False, False, True])
    assert judge.replay([77], lambda: next(draws)) == ((77,), False, 2)
    assert judge.replay([77], lambda: False).suspects == ()
    assert judge.replay([], lambda: True) == ((), True, 1)


def test_the_ladder_of_the_class_is_climbed_and_options_take_rungs_off() -> None:
    """Without rollback or replay the ladder goes on to the next rung."""

    def climbed(**changes: bool) -> list[Rung]:
        judge, past, rungs = judge_of(**changes), [], []
        seen = Judgement(IncidentClass.JOB_CRASH)
        while not rungs or rungs[-1] is not Rung.HUMAN:
            rungs.append(judge.rung(seen, past, can_rollback=True))
            past.append(PastIncident(incident_class=seen.incident_class, epoch=1, at=0.0, rungs=(rungs[-1],)))
        return rungs

    assert climbed() == [Rung.RETRY, Rung.ROLLBACK, Rung.REPLAY, Rung.HUMAN]
    assert climbed(rollback=False) == [Rung.RETRY, Rung.REPLAY, Rung.HUMAN]
    assert climbed(rollback=False, replay=False) == [Rung.RETRY, Rung.HUMAN]


def test_who_stands_out_in_a_hang_is_retried_in_place_first() -> None:
    """And goes when it stands out again within the window, as in production."""
    judge = judge_of()
    hang = judge.judge(DEFAULT.symptoms["job_hang"], {"m7": 7}, 10.0)
    assert hang.accused == ()
    first = Accusation(at=10.0, machines=("m7",))
    once = judge.stands_out(hang, first, (), ())
    assert judge.rung(once, (), can_rollback=False) is Rung.RETRY
    again = judge.stands_out(hang, first.model_copy(update={"at": 600.0}), (first,), ())
    assert again.accused == ("m7",)
    assert judge.rung(again, (), can_rollback=False) is Rung.EVICT
    much_later = 10.0 + POLICY.ladder.standing_out.window_s + 1
    late = judge.stands_out(hang, first.model_copy(update={"at": much_later}), (first,), ())
    assert judge.rung(late, (), can_rollback=False) is Rung.RETRY


def test_a_lost_pair_is_restored_from_s3() -> None:
    """A machine and the one that keeps its copy."""
    judge = judge_of()
    peer = judge._peers[5]
    both = judge.restore({5, peer}, 100, (90, 60), None, memory=True)
    assert (both.step, both.tier) == (90, Tier.S3)
    one = judge.restore({5}, 100, (90, 60), None, memory=True)
    assert (one.step, one.tier) == (100, Tier.MEMORY)
    bounded = judge.restore((), 90, (90, 60), 89, memory=False)
    assert bounded.step == 60


def test_the_pool_is_sized_by_the_policy() -> None:
    """1,200 machines at the packaged rate; or as the variant sets it."""
    assert decide.pool_size(DEFAULT, Variant(), POLICY) == 5
    assert decide.pool_size(DEFAULT, Variant(pool=9), POLICY) == 9
