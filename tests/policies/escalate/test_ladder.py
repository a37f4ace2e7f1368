"""The ladder: retry, rollback, replay, a human."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import IncidentClass, Rung
from holdfast.policies.classify.signature import Position, Signature
from holdfast.policies.config.ladders import ClassLadder
from holdfast.policies.config.policy import Policy
from holdfast.policies.escalate.ladder import (
    Circumstances,
    PastIncident,
    RungDecision,
    next_rung,
    order,
)

LADDER = Policy.load().ladder
CRASH = IncidentClass.JOB_CRASH
BACK = Circumstances(can_rollback=True)


def past(*rungs: Rung, progress: int = 0, kind: IncidentClass = CRASH) -> PastIncident:
    return PastIncident(incident_class=kind, epoch=1, at=0.0, rungs=rungs, progressed_steps=progress)


def decide(
    history: list[PastIncident],
    done: tuple[Rung, ...] | list[Rung] = (),
    seen: Circumstances = BACK,
    kind: IncidentClass = CRASH,
    **changes: object,
) -> RungDecision:
    ladder = LADDER.of(kind).model_copy(update=changes)
    return next_rung(history, done, ladder, LADDER.progress_steps, seen, LADDER.code_changed_s)


def rung(history: list[PastIncident], done: tuple[Rung, ...] = ()) -> Rung:
    return decide(history, done).rung


def test_the_ladder_is_climbed_within_one_incident() -> None:
    """Each rung once, in order."""
    climbed: list[Rung] = []
    while not climbed or climbed[-1] is not Rung.HUMAN:
        climbed.append(rung([], tuple(climbed)))
    assert climbed == [Rung.RETRY, Rung.ROLLBACK, Rung.REPLAY, Rung.HUMAN]


def test_the_ladder_is_climbed_across_incidents_without_progress() -> None:
    """A crash again at the same step is no new story."""
    history: list[PastIncident] = []
    for expected in (Rung.RETRY, Rung.ROLLBACK, Rung.REPLAY, Rung.HUMAN):
        assert rung(history) is expected
        history.append(past(expected, progress=LADDER.progress_steps - 1))


def test_progress_refills_the_budgets() -> None:
    """Restarts are not counted, attempts without progress are."""
    assert rung([past(Rung.RETRY, Rung.ROLLBACK, Rung.REPLAY, progress=LADDER.progress_steps)]) is Rung.RETRY
    assert rung([past(Rung.RETRY, progress=0), past(Rung.RETRY, progress=100)] * 20) is Rung.RETRY


def test_only_incidents_after_the_last_progress_count() -> None:
    """Old failures are paid for by the progress in between."""
    history = [past(Rung.RETRY), past(Rung.ROLLBACK, progress=50), past(Rung.RETRY)]
    assert rung(history) is Rung.ROLLBACK


def test_without_an_older_version_the_rollback_is_skipped() -> None:
    """And the reasons say so."""
    decision = decide([past(Rung.RETRY)], seen=Circumstances())
    assert decision.rung is Rung.REPLAY
    assert any("no earlier good code version" in reason for reason in decision.reasons)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (IncidentClass.MACHINE_FAULT, Rung.ROLLBACK),
        (IncidentClass.JOB_HANG, Rung.ROLLBACK),
        (IncidentClass.CODE_UPDATE, Rung.RETRY),
        (IncidentClass.USER_CODE_ERROR, Rung.RETRY),
    ],
)
def test_what_an_incident_without_rungs_counts_as(kind: IncidentClass, expected: Rung) -> None:
    """An eviction and restart was a retry; an engineer's update was no attempt."""
    assert rung([past(kind=kind)]) is expected


def test_a_ladder_is_what_the_policy_file_says() -> None:
    """Sites without spare capacity may leave replay out, try twice, and end with stopping."""
    twice = {"rungs": (Rung.RETRY, Rung.RETRY), "end": Rung.STOP}
    assert decide([], (Rung.RETRY,), **twice).rung is Rung.RETRY
    spent = decide([], (Rung.RETRY, Rung.RETRY), **twice)
    assert spent.rung is Rung.STOP
    assert "the job is stopped" in spent.reasons[-1]


def test_new_code_is_rolled_back_before_a_retry() -> None:
    """The same crash, minutes after a change."""
    seen = BACK.model_copy(update={"code_changed_s_ago": 30.0})
    assert decide([], seen=seen).rung is Rung.ROLLBACK
    assert any("the code changed 30 s before" in reason for reason in decide([], seen=seen).reasons)
    assert decide([], seen=BACK.model_copy(update={"code_changed_s_ago": 1e6})).rung is Rung.RETRY
    assert decide([], seen=Circumstances(code_changed_s_ago=30.0)).rung is Rung.RETRY


def test_a_repeat_offender_goes_before_a_retry() -> None:
    """The same crash, on a machine that was evicted often of late."""
    seen = BACK.model_copy(update={"accused": ("m1",), "offenders": frozenset({"m1", "m7"})})
    assert decide([], seen=seen).rung is Rung.EVICT
    elsewhere = BACK.model_copy(update={"accused": ("m1",), "offenders": frozenset({"m7"})})
    assert decide([], seen=elsewhere).rung is Rung.RETRY


def test_machines_of_one_switch_are_not_evicted() -> None:
    """Not even repeat offenders: the switch is what they share."""
    seen = BACK.model_copy(
        update={"accused": ("m1", "m2"), "offenders": frozenset({"m1"}), "switch": "leaf-1"}
    )
    climbed: list[Rung] = []
    while not climbed or climbed[-1] is not Rung.HUMAN:
        climbed.append(decide([], climbed, seen, IncidentClass.NETWORK_FAULT).rung)
    assert Rung.EVICT not in climbed
    assert Rung.RETRY in climbed


def test_without_an_accused_machine_none_is_evicted() -> None:
    """The rung is skipped, with its reason."""
    decision = decide([], (Rung.RETRY,), kind=IncidentClass.NETWORK_FAULT)
    assert decision.rung is Rung.REPLAY
    assert "evict: the alerts accuse no machine" in decision.reasons


def test_a_common_cause_rolls_back_first() -> None:
    """Every machine shows the fault: code or data."""
    assert decide([], seen=BACK.model_copy(update={"common_cause": True})).rung is Rung.ROLLBACK


def killed(rank: int, step: int | None = None, what: str = "SIGKILL") -> Signature:
    return Signature(what=what, rank=rank, machine=f"m{rank // 2}", position=Position(step=step))


def of(signature: Signature, *rungs: Rung, progress: int = 0, redone: int = 0) -> PastIncident:
    return past(*rungs, progress=progress).model_copy(update={"signature": signature, "redone_steps": redone})


def test_another_failure_has_a_ladder_of_its_own() -> None:
    """Kills of different ranks are retried each; the same again climbs, also with others in between."""
    seen = BACK.model_copy(update={"signature": killed(1)})
    assert decide([of(killed(3), Rung.RETRY), of(killed(5), Rung.RETRY)], seen=seen).rung is Rung.RETRY
    mixed = [of(killed(1), Rung.RETRY), of(killed(5), Rung.RETRY)]
    decision = decide(mixed, seen=seen)
    assert decision.rung is Rung.ROLLBACK
    assert "1 other failures are counted separately" in decision.reasons[0]


def test_what_nothing_speaks_for_is_a_retry_instead() -> None:
    """Neither rollback nor replay without evidence; bounded all the same."""
    seen = BACK.model_copy(
        update={"signature": killed(1), "code_cleared": "ran for days", "replay_cleared": "from outside"}
    )
    climbed: list[Rung] = []
    while not climbed or climbed[-1] is not Rung.HUMAN:
        climbed.append(decide([of(killed(1), rung) for rung in climbed], seen=seen).rung)
    assert climbed == [Rung.RETRY, Rung.RETRY, Rung.RETRY, Rung.HUMAN]


def test_new_code_that_is_cleared_does_not_go_first() -> None:
    """No reason names a rollback that is not done."""
    seen = BACK.model_copy(update={"code_changed_s_ago": 30.0, "code_cleared": "from outside"})
    decision = decide([], seen=seen)
    assert decision.rung is Rung.RETRY
    assert not any("rolled back first" in line for line in decision.reasons)


def test_what_every_group_of_a_replay_shows_speaks_for_the_code() -> None:
    """However long it ran."""
    seen = BACK.model_copy(update={"code_cleared": "ran for days", "common_cause": True})
    assert decide([], seen=seen).rung is Rung.ROLLBACK


@pytest.mark.parametrize(
    ("failed_at", "redone", "expected"),
    [(1150, 150, Rung.RETRY), (1200, 200, Rung.ROLLBACK), (1003, 3, Rung.ROLLBACK)],
)
def test_steps_computed_again_are_progress_unless_it_fails_where_it_failed(
    failed_at: int, redone: int, expected: Rung
) -> None:
    """After a fall-back to an older state."""
    before = of(killed(3, 1200, "SIGSEGV"), Rung.RETRY, redone=redone)
    seen = BACK.model_copy(update={"signature": killed(3, failed_at, "SIGSEGV")})
    assert decide([before], seen=seen).rung is expected


def test_the_data_is_named_when_the_same_step_fails_again() -> None:
    """Not for kills from outside: no data sends signals."""
    seen = BACK.model_copy(update={"signature": killed(3, 20, "ValueError")})
    assert "after step 20 2 times" in decide([of(killed(3, 20, "ValueError"), Rung.RETRY)], seen=seen).data
    assert not decide([of(killed(3, 14, "ValueError"), Rung.RETRY)], seen=seen).data
    outside = BACK.model_copy(update={"signature": killed(3, 20)})
    assert not decide([of(killed(3, 20), Rung.RETRY)], seen=outside).data


@pytest.mark.parametrize(
    "error", ["UnavailableError", "DamagedError", "UncoveredError", "ScriptRefusedError"]
)
def test_errors_of_saves_and_restores_name_no_data(error: str) -> None:
    """A store that refuses one object of the state: nothing was read after that step, and none of it is skipped."""
    seen = Circumstances(signature=killed(3, 20, error), may_skip=3)
    found = decide([of(killed(3, 20, error), Rung.RETRY)], seen=seen)
    assert (found.data, found.skip) == ("", None)


def test_a_class_that_says_what_it_is_names_no_data() -> None:
    """A full disk that ends ranks after the same step again."""
    seen = Circumstances(signature=killed(3, 20, "OSError"), by_data=False)
    assert decide([of(killed(3, 20, "OSError"), Rung.RETRY)], seen=seen).data == ""


def test_data_at_which_the_job_fell_twice_is_passed_over_where_its_file_allows_it() -> None:
    """Instead of a retry, a replay, an older state or a person; once for a step, and so often as is allowed."""
    history = [of(killed(3, 20, "OSError"), Rung.RETRY)]
    seen = Circumstances(signature=killed(3, 20, "OSError"), may_skip=2)
    assert (found := decide(history, seen=seen)).rung is Rung.SKIP_DATA
    assert found.skip == 21
    assert "the data of step 21 is skipped: the job file allows 2 more" in found.reasons[-1]
    for changes in ({"may_skip": 0}, {"skipped": (21,)}, {"skipped": (5, 9)}, {"signature": killed(3, 20)}):
        assert decide(history, seen=seen.model_copy(update=changes)).rung is not Rung.SKIP_DATA
    assert decide([], seen=seen).rung is Rung.RETRY
    # A start that fell at the same data before its first step is the second time.
    again = decide([], (Rung.RETRY,), seen.model_copy(update={"fell_again": 1}))
    assert (again.rung, again.skip) == (Rung.SKIP_DATA, 21)


def test_what_speaks_for_the_code_or_a_machine_comes_before_the_data() -> None:
    """New code, and a machine that was accused often."""
    history = [of(killed(3, 20, "OSError"), Rung.RETRY)]
    seen = Circumstances(signature=killed(3, 20, "OSError"), may_skip=1, can_rollback=True)
    assert decide(history, seen=seen).rung is Rung.ROLLBACK
    accused = seen.model_copy(update={"accused": ("m1",), "offenders": frozenset({"m1"})})
    assert decide(history, seen=accused).rung is Rung.EVICT


def test_a_pointless_retry_is_left_out() -> None:
    """The reasons say why."""
    decision = decide([], seen=Circumstances(no_retry="raised at once"), kind=IncidentClass.USER_CODE_ERROR)
    assert decision.rung is Rung.HUMAN
    assert "retry: raised at once" in decision.reasons


SEEN = st.builds(
    Circumstances,
    code_cleared=st.sampled_from(["", "ran for days"]),
    replay_cleared=st.sampled_from(["", "from outside"]),
    can_rollback=st.booleans(),
    code_changed_s_ago=st.none() | st.floats(0, 1e7),
    accused=st.sampled_from([(), ("m1",), ("m1", "m2")]),
    offenders=st.frozensets(st.sampled_from(["m1", "m2", "m3"])),
    switch=st.sampled_from(["", "leaf-1"]),
    common_cause=st.booleans(),
)


@given(SEEN, st.sampled_from(list(IncidentClass)))
def test_whatever_the_circumstances_the_ladder_ends(seen: Circumstances, kind: IncidentClass) -> None:
    """Each attempt uses budget up; rungs are reordered, at most an eviction is added."""
    ladder: ClassLadder = LADDER.of(kind)
    rungs, _ = order(ladder, seen, LADDER.code_changed_s)
    assert set(rungs) <= {*ladder.rungs, Rung.EVICT}
    climbed: list[Rung] = []
    while (found := decide([], climbed, seen, kind).rung) is not ladder.end:
        climbed.append(found)
    assert len(climbed) <= len(ladder.rungs) + 1


RUNGS = st.sampled_from([Rung.RETRY, Rung.ROLLBACK, Rung.REPLAY])


@given(st.lists(st.lists(RUNGS, max_size=3), max_size=6), st.lists(RUNGS, max_size=4), st.booleans())
def test_a_spent_rung_is_never_chosen(history: list[list[Rung]], done: list[Rung], rollback: bool) -> None:
    """Bounded: without progress every answer uses budget up, so a human comes in the end."""
    listed = [past(*rungs) for rungs in history if rungs]
    decision = decide(listed, done, Circumstances(can_rollback=rollback))
    used = [*done, *(r for p in listed for r in p.rungs)].count(decision.rung)
    assert decision.rung is Rung.HUMAN or used < LADDER.of(CRASH).rungs.count(decision.rung)
    assert decision.reasons


ONLY = Circumstances(only_machine="m0", code_cleared="it ran for ten days", can_rollback=True)


def test_the_only_machine_of_a_job_is_left_before_a_replay_and_before_steps_are_lost() -> None:
    """Nothing is there to compare it with; once it was moved lately, the ladder goes on."""
    assert decide([], seen=ONLY).rung is Rung.RETRY
    spent = [past(Rung.RETRY, Rung.RETRY)]
    decision = decide(spent, seen=ONLY)
    assert decision.rung is Rung.EVICT
    assert decision.reasons[-1].startswith("m0 is the only machine")
    assert (
        decide(spent, seen=ONLY.model_copy(update={"poisoned": "step 20 led to it twice"})).rung is Rung.EVICT
    )
    assert decide(spent, seen=ONLY.model_copy(update={"only_machine": ""})).rung is Rung.REPLAY


@pytest.mark.parametrize("changes", [{"code_cleared": ""}, {"no_retry": "the script must change"}])
def test_the_only_machine_stays_where_the_code_is_at_fault(changes: dict[str, str]) -> None:
    """A standby would run the same code."""
    spent = [past(Rung.RETRY, Rung.RETRY, Rung.ROLLBACK, Rung.REPLAY)]
    assert decide(spent, seen=ONLY.model_copy(update=changes)).rung is Rung.HUMAN


def test_a_long_run_without_steps_refills_the_budgets() -> None:
    """A plain script whose rank is killed once a day is never out of attempts."""
    short = past(Rung.RETRY, Rung.ROLLBACK, Rung.REPLAY)
    long = short.model_copy(update={"ran_on": True})
    assert (rung([short]), rung([long])) == (Rung.HUMAN, Rung.RETRY)


KILLS = st.tuples(
    st.integers(0, 7),
    st.sampled_from(["SIGKILL", "SIGSEGV", "ValueError"]),
    st.integers(LADDER.progress_steps, 20),
)


@given(st.lists(KILLS, max_size=20), st.booleans())
def test_no_history_of_failures_with_progress_between_ends_a_ladder(
    failures: list[tuple[int, str, int]], back: bool
) -> None:
    """Whatever failed, on whatever rank, and how often: each is retried in place."""
    history: list[PastIncident] = []
    for number, what, steps in failures:
        signature = killed(number, len(history), what)
        seen = Circumstances(signature=signature, can_rollback=back, code_cleared="it ran for days")
        chosen = decide(history, seen=seen).rung
        assert chosen is Rung.RETRY
        history.append(of(signature, chosen, progress=steps))
