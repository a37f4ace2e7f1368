"""One life of a job: what happens, and that time and steps add up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import AlertKind
from holdfast.policies.config.policy import Policy
from holdfast.simulate.job import live
from holdfast.simulate.life import HUMAN, MERGED, MOVED, ROLLBACK, UPDATE
from holdfast.simulate.saving import SavedProgress
from holdfast.simulate.scenario import DAY_S, Cause, Strategy, Symptom, SymptomSign, Variant
from tests.simulate.make import DEFAULT, LOST, scenario

POLICY = Policy.load()
SHORT = DEFAULT.model_copy(update={"days": 10})


def symptom(cause: Cause, kind: AlertKind = AlertKind.RANK_EXIT, **changes: Any) -> Symptom:
    evidence = {AlertKind.NON_FINITE: {"step": 1, "metric": "loss", "value": "nan"}}.get(
        kind, {"exit_code": 1}
    )
    facts: dict[str, Any] = {
        "count": 1,
        "causes": {cause: 1},
        "signs": (SymptomSign(kind=kind, evidence=evidence),),
        "detect_s": 1,
        "timeout_s": 600,
    }
    return Symptom(**{**facts, **changes})


def lives(
    cause: Cause, variant: Variant | None = None, kind: AlertKind = AlertKind.RANK_EXIT, **changes: Any
) -> Any:
    """One life in which machines are lost now and then, and something else with ``cause`` as often."""
    what = scenario(
        days=30,
        mix_rate=2 / 64,
        code_share=1.0,
        symptoms={"lost": LOST, "other": symptom(cause, kind, **changes)},
    )
    return live(what, variant or Variant(strategy=Strategy.UNLIMITED), POLICY, "1")


def test_the_same_seed_gives_the_same_life() -> None:
    """To the microsecond; another seed another life."""
    variant = SHORT.variants[-2]
    assert live(SHORT, variant, POLICY, "1") == live(SHORT, variant, POLICY, "1")
    assert live(SHORT, variant, POLICY, "1") != live(SHORT, variant, POLICY, "2")


@pytest.mark.parametrize("variant", DEFAULT.variants, ids=lambda variant: variant.title)
def test_time_adds_up_under_every_variant(variant: Variant) -> None:
    """Productive and lost time are the wall-clock time exactly; productive time is that of the steps."""
    found = live(SHORT, variant, POLICY, "3")
    account = found.account
    assert account.productive_us + sum(row.us for row in account.lost) == account.wall_us == 10 * DAY_S * 1e6
    assert account.productive_us / 1e6 == pytest.approx(found.steps * SHORT.step_s, rel=1e-3)
    assert sum(found.classes.values()) == found.incidents > 10


def test_each_help_helps() -> None:
    """In the packaged comparison the ETTR grows from the first to the last."""
    ratios = [
        sum(live(SHORT, DEFAULT.variants[index], POLICY, f"s{n}").account.ratio for n in range(3))
        for index in (0, 1, 4, 11)
    ]
    assert ratios == sorted(ratios)


def test_a_transient_fault_is_over_with_a_retry() -> None:
    """Nothing is evicted for it."""
    found = lives(Cause.TRANSIENT)
    assert found.mechanisms["reattempt"] > 20
    assert HUMAN not in found.mechanisms
    assert found.evictions == found.mechanisms["eviction on a real-time check"]


def test_a_code_fault_climbs_the_ladder_to_the_rollback() -> None:
    """It comes back at once, so a retry brings no progress; without rollback a person is needed."""
    found = lives(Cause.CODE)
    assert found.mechanisms[HUMAN] > found.mechanisms[ROLLBACK] > 0, "there are few versions to go back to"
    without = lives(Cause.CODE, Variant(strategy=Strategy.UNLIMITED, rollback=False))
    assert ROLLBACK not in without.mechanisms


def test_code_changes_come_at_once_or_ride_on_a_restart() -> None:
    """Those that can wait do, a day at most."""
    found = lives(Cause.PLANNED, kind=AlertKind.CODE_UPDATE)
    assert found.mechanisms[MERGED] > 5
    assert found.mechanisms[UPDATE] > 5


KEPT = Variant(strategy=Strategy.UNLIMITED, keep_processes=True)
RESTARTED = Variant(strategy=Strategy.UNLIMITED)


def test_kept_processes_go_on_after_a_lost_machine_in_their_own_time() -> None:
    """The two variants see the same faults: each restart in processes saves the difference of the two costs."""
    what = scenario({"kept_s": {64: 5}, "restart_s": {64: 45}, "human_s": 1e-6}, days=30)
    kept, restarted = live(what, KEPT, POLICY, "1"), live(what, RESTARTED, POLICY, "1")
    assert restarted.in_process == 0
    assert kept.in_process == kept.restarts > 20
    assert kept.account.by_phase()["restarting"] == pytest.approx(
        45 + 5 * kept.in_process,
        abs=what.step_s,  # the last step is cut off
    )


def test_new_code_is_started_in_new_processes() -> None:
    """As is a job whose class the policy does not list, and one whose ranks waited for too long."""
    planned = lives(Cause.PLANNED, KEPT, AlertKind.CODE_UPDATE)
    assert 0 < planned.in_process < planned.restarts - planned.mechanisms[UPDATE]
    hangs = symptom(Cause.TRANSIENT, AlertKind.HANG)
    what = scenario(days=30, machine_rate=0.0, mix_rate=2 / 64, symptoms={"lost": LOST, "hang": hangs})
    found = live(what, KEPT, POLICY, "1")
    assert found.restarts > 10
    assert found.in_process == 0


@pytest.mark.parametrize(("diagnose_s", "kept"), [(100.0, True), (130.0, False)])
def test_processes_wait_no_longer_than_the_policy_says(diagnose_s: float, kept: bool) -> None:
    """120 s from the stop, that the diagnosis takes its part of (the rank's own error asks for it first)."""
    raised = SymptomSign(
        kind=AlertKind.RANK_EXIT, evidence={"exit_code": 1, "error_type": "AcceleratorError"}
    )
    other = symptom(Cause.TRANSIENT).model_copy(update={"signs": (raised,)})
    what = scenario(
        {"diagnose_s": diagnose_s},
        days=30,
        mix_rate=2 / 64,
        symptoms={"lost": LOST.model_copy(update={"count": 0.1}), "other": other},
    )
    found = live(what, KEPT, POLICY, "1")
    assert found.mechanisms["reattempt"] > 20
    assert (found.in_process > found.mechanisms["reattempt"]) is kept


def test_a_first_death_is_diagnosed_beside_the_training() -> None:
    """Its diagnosis costs no time, and no step; a machine that it finds is evicted with a second restart."""
    first = lives(Cause.TRANSIENT, KEPT)
    assert first.mechanisms["reattempt"] > 20
    assert first.account.by_phase().get("diagnosing", 0.0) < 0.1 * lives(
        Cause.TRANSIENT, RESTARTED
    ).account.by_phase().get("diagnosing", 0.0)
    broken = symptom(Cause.MACHINE, found_share=1.0)
    what = scenario({"again_s": {"machine": 1e6, "code": 20}}, days=30, symptoms={"broken": broken})
    found = live(what, KEPT, POLICY, "1")
    assert found.evictions == found.mechanisms["eviction by stop-time checks"] > 20
    assert found.restarts == 2 * found.evictions


def leaving(policy: Policy, **changes: Any) -> Any:
    """One life in which machines are to be left now and then, and nothing else happens."""
    what = scenario(
        days=30,
        machine_rate=0.0,
        leave_rate=1 / 64,
        symptoms={
            "os_kernel_panic": LOST,
            "maintenance": symptom(Cause.PLANNED, AlertKind.RANK_EXIT).model_copy(update={"count": 0}),
        },
    )
    return live(what, Variant(strategy=Strategy.UNLIMITED, **changes), policy, "1")


def test_a_planned_move_costs_its_switch_and_a_lost_machine_all_of_a_recovery() -> None:
    """Ranks are started ahead where the policy has it so; else the restart is part of the switch."""
    moves = POLICY.planned_move.model_copy(update={"ahead_on_gpus": True})
    ahead = leaving(POLICY.model_copy(update={"planned_move": moves}))
    switched, lost = leaving(POLICY), leaving(POLICY, moves=False)
    count = ahead.mechanisms[MOVED]
    assert count > 15
    assert count == switched.mechanisms[MOVED] == lost.mechanisms["eviction on a real-time check"]
    assert ahead.account.by_class()["planned_move"] == pytest.approx(0.25 * count)
    assert switched.account.by_class()["planned_move"] == pytest.approx((0.25 + 2 + 46) * count)
    assert lost.account.by_class()["machine_fault"] > (10 + 1 + 5 + 5 + 3 + 2 + 46) * count
    assert ahead.evictions == switched.evictions == 0


def test_a_job_does_not_stand_while_a_person_is_asked() -> None:
    """It is started again after the policy's pauses, so that its longest stretch without a step is shorter."""
    again = lives(Cause.CODE, Variant(strategy=Strategy.UNLIMITED, rollback=False))
    stands = lives(Cause.CODE, Variant(strategy=Strategy.UNLIMITED, rollback=False, again=False))
    assert again.mechanisms[HUMAN] > 3
    assert again.account.worst_us < 0.6 * stands.account.worst_us
    assert again.account.by_phase()["waiting"] < stands.account.by_phase()["waiting"]


def test_corrupt_state_is_not_restored() -> None:
    """After a value that is not finite the newest step is made again; with checkpoints now and then, more of them."""
    found = lives(Cause.TRANSIENT, kind=AlertKind.NON_FINITE, corrupts=True)
    again = found.account.by_phase()["recomputing"]
    assert 10 < again < 200
    rarely = Variant(strategy=Strategy.UNLIMITED, checkpoint_s=1800)
    assert (
        lives(Cause.TRANSIENT, rarely, AlertKind.NON_FINITE, corrupts=True).account.by_phase()["recomputing"]
        > 20 * again
    )


def test_a_requeued_job_loses_what_is_in_memory() -> None:
    """All its machines go: the state comes from the remote store, although every step was saved."""
    assert lives(Cause.TRANSIENT, Variant(strategy=Strategy.REQUEUE)).tiers.keys() <= {"s3", "scratch"}
    assert lives(Cause.TRANSIENT, Variant(strategy=Strategy.RESCHEDULE)).tiers.keys() <= {"memory", "scratch"}


def test_a_switch_takes_its_machines_along() -> None:
    """32 evictions at once; the pool has too few."""
    panic = LOST.model_copy()
    what = scenario(
        days=30, symptoms={"os_kernel_panic": panic}, switch=DEFAULT.switch.model_copy(update={"share": 1.0})
    )
    found = live(what, Variant(pool=2), POLICY, "1")
    assert found.evictions >= 32
    assert found.swaps_short > 0


def test_a_slow_job_goes_on_until_it_is_noticed() -> None:
    """Its steps count; the speed that it lost does not."""
    slow = {"kind": AlertKind.MFU_DECLINE, "slowdown": 0.3, "detect_s": 1000}
    found = lives(Cause.TRANSIENT, **slow)
    calm = lives(Cause.TRANSIENT, kind=AlertKind.MFU_DECLINE, detect_s=1000)
    assert 0.2 < found.account.by_phase()["undetected"] / calm.account.by_phase()["undetected"] < 0.4


@given(
    st.lists(st.floats(0, 5000), min_size=1, max_size=8),
    st.floats(0.5, 20),
    st.none() | st.floats(1, 3000),
    st.floats(0, 100),
    st.floats(0, 0.1),
)
def test_no_step_is_lost_or_counted_twice(
    stretches: list[float], step_s: float, interval_s: float | None, write_s: float, share: float
) -> None:
    """Whatever the pattern of stretches: time of steps fits the stretch, new steps add up to the furthest."""
    what = scenario({}, {"write_s": write_s, "every_step_share": share}, step_s=step_s)
    progress = SavedProgress(what, Variant(checkpoint_s=interval_s))
    new_steps = 0
    for wall_s in stretches:
        before = progress.position
        again, new = progress.train(wall_s)
        assert again.seconds + new.seconds <= wall_s + 1e-6
        assert again.steps + new.steps == progress.position - before
        assert 0 <= new.stall_s <= new.seconds + 1e-9
        assert (
            new.seconds - new.stall_s == pytest.approx(new.steps * step_s, abs=1e-6) or interval_s is not None
        )
        new_steps += new.steps
        assert progress.reached == new_steps
        assert all(0 < step <= progress.position for step in progress.remotes)
        progress.restore(progress.remotes[0] if progress.remotes else 0)
