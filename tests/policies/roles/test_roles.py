"""Order, places and restarts of roles."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.roles import ReplicaPlace, Restart, RestartWhen, RoleSpec, WithTrainer
from holdfast.policies.roles.placement import after_failure, place
from holdfast.policies.roles.restart import ReplicaEnd, after, pause_s
from holdfast.policies.roles.start_order import all_ready, may_start, waits_for

ROLES = {
    "trainer": RoleSpec(needs=("cache",)),
    "cache": RoleSpec(script="c.py"),
    "rollout": RoleSpec(script="r.py", needs=("trainer", "cache")),
}


def test_a_role_starts_after_what_it_needs() -> None:
    """And stays, once it was started, whatever becomes of that."""
    assert may_start(ROLES, []) == ["cache"]
    assert may_start(ROLES, ["cache"]) == ["cache"]
    assert may_start(ROLES, ["cache", "trainer"]) == ["cache", "rollout"]
    assert may_start(ROLES, [], started=["rollout"]) == ["cache", "rollout"]
    assert waits_for(ROLES, "rollout", ["cache"]) == ["trainer"]
    assert waits_for(ROLES, "absent", []) == []
    assert all_ready(RoleSpec(script="c.py", replicas=2), 2)
    assert not all_ready(RoleSpec(script="c.py", replicas=2), 1)


MACHINES = ["m0", "m1", "m2", "m3", "m4"]


@given(
    replicas=st.integers(0, 12),
    limit=st.integers(0, 4),
    most=st.integers(0, 4),
    first=st.sets(st.sampled_from(MACHINES), min_size=1),
    then=st.sets(st.sampled_from(MACHINES), min_size=1),
)
def test_replicas_are_spread_and_move_only_when_they_must(
    replicas: int, limit: int, most: int, first: set[str], then: set[str]
) -> None:
    """Each has one place; those whose machine stays do too; a moved one is of a newer generation."""
    role = RoleSpec(script="r.py", replicas=replicas, per_machine=limit, machines=most)
    before = place("r", role, sorted(first), (), {}, 1)
    generations = {each.index: each.generation for each in before.places}
    after_it = place("r", role, sorted(then), before.places, generations, 2)
    for placed, machines in ((before, first), (after_it, then)):
        assert sorted([*(each.index for each in placed.places), *placed.unplaced]) == list(range(replicas))
        on = Counter(each.machine for each in placed.places)
        assert set(on) <= machines
        assert not limit or max(on.values(), default=0) <= limit
        assert not placed.unplaced or limit
    usable = min(most or len(first), len(first))
    on = Counter(each.machine for each in before.places)
    if on:
        assert max(on.values()) - min(on.values()) <= 1
        assert len(on) == min(usable, len(before.places))
    for old in before.places:
        new = next((each for each in after_it.places if each.index == old.index), None)
        if old.machine in then:
            assert new == old
        elif new is not None:
            assert new.generation == old.generation + 1


def test_replicas_that_go_with_the_trainer_are_of_a_new_generation() -> None:
    """Others stay as they are."""
    old = (ReplicaPlace(role="r", index=0, machine="m0", generation=3, epoch=1),)
    stay = RoleSpec(script="r.py")
    assert place("r", stay, ["m0"], old, {0: 3}, 2).places == old
    (new,) = place(
        "r", stay.model_copy(update={"with_trainer": WithTrainer.RESTART}), ["m0"], old, {0: 3}, 2
    ).places
    assert (new.generation, new.epoch) == (4, 2)


def test_a_replica_that_starts_again_with_the_trainer_stays_where_it_is() -> None:
    """Its agent ends the former one first; elsewhere both would run for a moment."""
    role = RoleSpec(script="r.py", replicas=2, with_trainer=WithTrainer.RESTART)
    old = tuple(ReplicaPlace(role="r", index=index, machine="m1", generation=1, epoch=1) for index in (0, 1))
    new = place("r", role, ["m0", "m1"], old, {0: 1, 1: 1}, 2).places
    assert [(each.machine, each.generation, each.epoch) for each in new] == [("m1", 2, 2)] * 2


def test_a_replica_that_may_still_run_is_placed_nowhere_else() -> None:
    """Its machine serves no longer; once it is known to have ended, the next generation starts on another one."""
    role = RoleSpec(script="r.py")
    old = (ReplicaPlace(role="r", index=0, machine="m0", generation=1, epoch=1),)
    assert place("r", role, ["m1"], old, {0: 1}, 1, lingering={0}).places == old
    (new,) = place("r", role, ["m1"], old, {0: 1}, 1).places
    assert (new.machine, new.generation) == ("m1", 2)


def test_a_replica_is_tried_elsewhere_before_a_person_is_asked() -> None:
    """On other machines first; the one that is asked about keeps its place and is started no more."""
    role = RoleSpec(script="r.py", restart=Restart(moves=1))
    first = place("r", role, ["m0", "m1"], (), {}, 1).places[0]
    failed = after_failure(first, role, "5 failures", 7.0)
    assert not failed.asked
    moved = place("r", role, ["m0", "m1"], (failed,), {0: 1}, 1).places[0]
    assert (moved.machine, moved.generation) == ("m1", 2)
    asked = after_failure(moved, role, "5 failures", 7.0)
    assert asked.asked == "5 failures on m0, m1"
    assert place("r", role, ["m0"], (asked,), {0: 2}, 2).places == (asked,)


def test_restarts_are_counted_over_the_machines_where_a_replica_failed() -> None:
    """Two runs on each of two machines are three restarts; a third one on another machine is the fourth."""
    role = RoleSpec(script="r.py", restart=Restart(failures=2, moves=1))
    (first,) = place("r", role, ["m0", "m1"], (), {}, 1).places
    assert first.restarts == 0
    (second,) = place("r", role, ["m0", "m1"], [after_failure(first, role, "x", 0.0, 1)], {0: 1}, 1).places
    assert (second.machine, second.restarts) == ("m1", 2)
    asked = after_failure(second, role, "x", 0.0, 1)
    assert asked.asked
    assert asked.restarts == 3
    again = asked.model_copy(update={"tried": (), "asked": "", "machine": ""})
    (third,) = place("r", role, ["m0", "m1"], [again], {0: 2}, 1).places
    assert third.restarts == 4


def test_of_equal_machines_the_one_with_fewer_other_replicas_is_taken() -> None:
    """Roles together are spread too."""
    role = RoleSpec(script="r.py")
    assert place("r", role, ["m0", "m1"], (), {}, 1, {"m0": 2}).places[0].machine == "m1"


RULE = Restart(pause_s=1, longest_pause_s=8, failures=3, good_after_s=60)


def test_pauses_grow_while_runs_are_bad() -> None:
    """Up to a limit."""
    assert [pause_s(RULE, number) for number in range(6)] == [1, 1, 2, 4, 8, 8]


def test_a_good_run_clears_the_count() -> None:
    """One that announced itself or lasted: kills without end are no failure of the replica."""
    for good in (ReplicaEnd(1, -9, announced=True), ReplicaEnd(61, 1)):
        assert after(good, RULE, 2, (), 0).failures == 0
    assert after(ReplicaEnd(1, 1), RULE, 1, (), 0).pause_s == 2
    assert after(ReplicaEnd(1, 1), RULE, 2, (), 0).failed == "3 failures in a row (restart.failures)"


def test_the_budget_counts_restarts_within_an_hour() -> None:
    """Good runs too."""
    rule = RULE.model_copy(update={"per_hour": 2})
    good = ReplicaEnd(1, -9, announced=True)
    assert (
        after(good, rule, 0, (0.0, 3000.0), 3500.0).failed == "2 restarts within an hour (restart.per_hour)"
    )
    assert after(good, rule, 0, (0.0, 3000.0), 3700.0).pause_s == 1


def test_a_replica_that_ends_well_is_done_unless_it_runs_always() -> None:
    """And one that is never restarted is given up with its failure."""
    ended, failed = ReplicaEnd(1, 0), ReplicaEnd(1, 1)
    assert after(ended, RULE, 0, (), 0) == after(
        ended, RULE.model_copy(update={"when": RestartWhen.NEVER}), 0, (), 0
    )
    assert after(ended, RULE, 0, (), 0).pause_s is None
    assert after(ended, RULE.model_copy(update={"when": RestartWhen.ALWAYS}), 0, (), 0).pause_s == 1
    never = after(failed, RULE.model_copy(update={"when": RestartWhen.NEVER}), 0, (), 0)
    assert never.pause_s is None
    assert "never restarted" in never.failed


@given(st.lists(st.tuples(st.floats(0, 100), st.sampled_from([-9, 0, 1]), st.booleans()), max_size=40))
def test_a_replica_is_given_up_only_after_so_many_bad_runs_in_a_row(
    runs: list[tuple[float, int, bool]],
) -> None:
    """Whatever it did before, and never with a pause longer than allowed."""
    failures = bad = 0
    for run in runs:
        ended = ReplicaEnd(*run)
        bad = 0 if ended.good(RULE) else bad + 1
        what = after(ended, RULE.model_copy(update={"when": RestartWhen.ALWAYS}), failures, (), 0)
        failures = what.failures
        assert failures == bad
        assert (what.pause_s is None) == (bad >= RULE.failures)
        assert what.pause_s is None or what.pause_s <= RULE.longest_pause_s
        if what.pause_s is None:
            break


def test_a_replica_that_failed_wherever_there_is_room_is_asked_about() -> None:
    """It does not move back and forth; a person is asked, once it failed on every machine of a small job."""
    role = RoleSpec(script="r.py", restart=Restart(moves=2))
    (now,) = place("r", role, ["m0", "m1"], (), {}, 1).places
    for _ in range(2):
        failed = after_failure(now, role, "exit status 3", 5.0)
        (now,) = place("r", role, ["m0", "m1"], (failed,), {0: now.generation}, 1, now=5.0).places
    assert (now.generation, now.asked_at) == (2, 5.0)
    assert now.asked == "exit status 3 on m0, m1, and no other machine has room for it"
    assert place("r", role, ["m0", "m1"], (now,), {0: 2}, 1, now=6.0).places == (now,)
