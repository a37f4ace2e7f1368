"""Graded repair: what a verdict asks for, which step follows which outcome, and where it ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass
from holdfast.models.repair import Ask, Repair, RepairState, Step, StepRecord, StepState
from holdfast.policies.classify.decision import JobContext
from holdfast.policies.classify.incident_class import classify
from holdfast.policies.config.policy import Policy
from holdfast.policies.pool import repair
from tests.policies.make import NOW, alert, job, rank_exit

POLICY = Policy.load().repair
CLASSIFY = Policy.load().classify
DAY_S = 86_400.0


def of(
    asked: Ask, *steps: tuple[Step, StepState], number: int = 1, opened_at: float = NOW, times: int = 1
) -> Repair:
    records = [
        StepRecord(step=step, state=state, begun_at=NOW, at_most_s=1, said="it was done", times=times)
        for step, state in steps
    ]
    return Repair(
        id=number,
        machine="m1",
        incarnation="a@u1",
        asked=asked,
        why="Xid",
        opened_at=opened_at,
        steps=tuple(records),
    )


def step_after(asked: Ask, *steps: tuple[Step, StepState]) -> Step | None:
    move = repair.next_move(of(asked, *steps), [], POLICY, NOW)
    return move.step if move else None


def xid(code: int, machine: str = "m1", line: str = "") -> Alert:
    return alert(AlertKind.XID, machine=machine, evidence={"xid": code, "line": line})


@pytest.mark.parametrize(
    ("alerts", "asks"),
    [
        ([xid(119)], Ask.RESET_GPU),
        ([xid(79)], Ask.RESTART_MACHINE),
        ([xid(119), xid(79)], Ask.RESTART_MACHINE),
        ([xid(54), xid(79)], Ask.HANDS),
        ([alert(AlertKind.GPU_LOST, machine="m1")], Ask.RESTART_MACHINE),
        ([alert(AlertKind.SXID, machine="m1", evidence={"sxid": 12028, "fatal": True})], Ask.RESET_GPU),
        ([xid(43), xid(13), xid(94), xid(63)], None),
        ([xid(119, machine="m2")], None),
        ([alert(AlertKind.MACHINE_LOST, machine="m1"), alert(AlertKind.HANG)], None),
        ([alert(AlertKind.GPU_ECC_UNCORRECTABLE, machine="m1")], Ask.RESET_GPU),
        ([alert(AlertKind.DISK_FAULT, machine="m1")], Ask.HANDS),
        ([xid(119), alert(AlertKind.DISK_FAULT, machine="m1")], Ask.HANDS),
        ([xid(119).model_copy(update={"firing": False})], None),
    ],
)
def test_the_gravest_that_the_verdict_names_is_asked(alerts: list[Alert], asks: Ask | None) -> None:
    """By the catalogue, of this machine alone, of what fires; what leaves the GPU usable asks nothing."""
    found = repair.asked(alerts, "m1", (), CLASSIFY)
    assert (found[0] if found else None) is asks


@pytest.mark.parametrize(
    ("check", "asks"),
    [
        ("gsp_timeout", Ask.RESET_GPU),
        ("gpu_wedged", Ask.RESET_GPU),
        ("nvlink_undetected", Ask.RESET_GPU),
        ("machine_check", Ask.HANDS),
        ("disk_errors", Ask.HANDS),
        ("hung_task", None),
    ],
)
def test_what_explains_the_incident_is_asked_and_what_only_stands_beside_it_is_not(
    check: str, asks: Ask | None
) -> None:
    """A disk with errors on a machine that is evicted for its GPU, or for its pace, needs no hands."""
    host = alert(AlertKind.HOST_FAULT, machine="m1", evidence={"check": check})
    died = rank_exit(2, exit_code=-7, signal="SIGBUS")
    decision = classify([died, host], JobContext(job=job(), now=NOW), Policy.load())
    assert isinstance(decision, Classification)
    found = repair.asked([died, host], "m1", decision.reasons, CLASSIFY)
    assert (found[0] if found else None) is asks
    assert repair.asked([died, host], "m1", ("the pace of m1 is 1.4 times the median",), CLASSIFY) is None
    beside = repair.asked([host, xid(119)], "m1", decision.reasons, CLASSIFY)
    assert beside is not None
    assert beside[0] is Ask.RESET_GPU


def test_what_a_job_left_the_machine_for_is_asked() -> None:
    """A sign that it will fail, where the policy has the job leave it: such a machine is repaired afterwards."""
    policy = Policy.load()
    signs = policy.planned_move.model_copy(update={"precursors": frozenset({AlertKind.HOST_FAULT})})
    sign = alert(AlertKind.HOST_FAULT, machine="m1", evidence={"check": "disk_failing", "detail": "SMART"})
    context = JobContext(job=job(), now=NOW)
    decision = classify([sign], context, policy.model_copy(update={"planned_move": signs}))
    assert isinstance(decision, Classification)
    assert decision.incident_class is IncidentClass.PLANNED_MOVE
    found = repair.asked([sign], "m1", decision.reasons, CLASSIFY)
    assert found is not None
    assert found[0] is Ask.HANDS
    assert repair.asked([sign], "m1", ("asked to leave m1, maintenance",), CLASSIFY) is None


def test_the_way_of_a_reset_that_works() -> None:
    """Reset, diagnosis, back, checks, standby."""
    done: list[tuple[Step, StepState]] = []
    while (step := step_after(Ask.RESET_GPU, *done)) is not None:
        done.append((step, StepState.WORKED))
    assert [step for step, _ in done] == [Step.RESET_GPU, Step.DIAGNOSE, Step.RETURN, Step.CHECK, Step.ADMIT]


def test_a_failed_reset_leads_to_a_restart_and_that_to_a_ticket() -> None:
    """Never back to the milder one."""
    reset = (Step.RESET_GPU, StepState.FAILED)
    assert step_after(Ask.RESET_GPU, reset) is Step.RESTART_MACHINE
    assert step_after(Ask.RESET_GPU, reset, (Step.RESTART_MACHINE, StepState.FAILED)) is Step.TICKET
    assert step_after(Ask.RESET_GPU, reset, (Step.RESTART_MACHINE, StepState.WORKED)) is Step.DIAGNOSE
    assert step_after(Ask.RESTART_MACHINE, (Step.RESTART_MACHINE, StepState.FAILED)) is Step.TICKET


@pytest.mark.parametrize("step", [Step.DIAGNOSE, Step.RETURN, Step.CHECK, Step.ADMIT])
def test_what_fails_after_the_repair_goes_to_a_person(step: Step) -> None:
    """It was repaired and is broken still."""
    assert (
        step_after(Ask.RESET_GPU, (Step.RESET_GPU, StepState.WORKED), (step, StepState.FAILED)) is Step.TICKET
    )


def test_what_cannot_be_done_here() -> None:
    """No graver step because a milder one is not set up; a diagnosis that is not installed holds nothing up."""
    assert step_after(Ask.RESET_GPU, (Step.RESET_GPU, StepState.SKIPPED)) is Step.TICKET
    assert step_after(Ask.RESTART_MACHINE, (Step.RESTART_MACHINE, StepState.SKIPPED)) is Step.TICKET
    assert step_after(Ask.RESET_GPU, (Step.DIAGNOSE, StepState.SKIPPED)) is Step.RETURN


def test_hands_are_asked_for_at_once() -> None:
    """No command plugs a cable in."""
    assert step_after(Ask.HANDS) is Step.TICKET


def test_only_so_many_repairs_in_a_window() -> None:
    """The third within a week is a ticket; those that touched nothing, and older ones, do not count."""
    now = NOW + 30 * DAY_S
    this = of(Ask.RESET_GPU, number=9, opened_at=now)
    touched = (Step.RESET_GPU, StepState.WORKED)
    recent = [of(Ask.RESET_GPU, touched, number=n, opened_at=now - n * DAY_S) for n in (1, 2)]
    old = [of(Ask.RESET_GPU, touched, number=n, opened_at=now - n * DAY_S) for n in (8, 10)]
    tickets = [of(Ask.HANDS, (Step.TICKET, StepState.WORKED), number=n, opened_at=now) for n in (3, 4)]
    move = repair.next_move(this, [*recent, this], POLICY, now)
    assert move is not None
    assert move.step is Step.TICKET
    assert "repaired 2 times in the last 7 days" in move.why
    move = repair.next_move(this, [recent[0], *old, *tickets, this], POLICY, now)
    assert move is not None
    assert move.step is Step.RESET_GPU


def test_an_interrupted_step_is_repeated_once() -> None:
    """A run may be killed; one that kills every run needs a look."""
    begun = (Step.RESTART_MACHINE, StepState.BEGUN)
    first = repair.next_move(of(Ask.RESTART_MACHINE, begun), [], POLICY, NOW)
    again = repair.next_move(of(Ask.RESTART_MACHINE, begun, times=2), [], POLICY, NOW)
    assert first is not None
    assert first.step is Step.RESTART_MACHINE
    assert again is not None
    assert again.step is Step.TICKET


def test_a_ticket_is_sent_until_it_arrives() -> None:
    """With its first cause, not its own failure; nothing comes after one that did."""
    steps = [(Step.RESTART_MACHINE, StepState.FAILED), (Step.TICKET, StepState.FAILED)]
    move = repair.next_move(of(Ask.RESTART_MACHINE, *steps), [], POLICY, NOW)
    assert move is not None
    assert move.step is Step.TICKET
    assert "restart_machine failed" in move.why
    over = of(Ask.HANDS, (Step.TICKET, StepState.WORKED)).model_copy(update={"state": RepairState.TICKET})
    assert repair.next_move(over, [], POLICY, NOW) is None


OUTCOMES = st.sampled_from([StepState.WORKED, StepState.FAILED, StepState.SKIPPED])


@given(st.sampled_from(Ask), st.lists(OUTCOMES, min_size=12, max_size=12))
def test_every_way_ends(asked: Ask, outcomes: list[StepState]) -> None:
    """With the standby pool or a ticket, after each step at most once, and never both."""
    done: list[tuple[Step, StepState]] = []
    for outcome in outcomes:
        step = step_after(asked, *done)
        if step in (None, Step.TICKET):
            break
        assert step is not None
        assert step not in [before for before, _ in done]
        done.append((step, outcome))
    step = step_after(asked, *done)
    admitted = done[-1:] == [(Step.ADMIT, StepState.WORKED)]
    assert (step is None) if admitted else (step is Step.TICKET)
    if admitted:
        assert (Step.CHECK, StepState.WORKED) in done
        assert not [
            before for before, state in done if state is StepState.FAILED and before is not Step.RESET_GPU
        ]


def test_auto_leaves_machines_of_one_host_alone() -> None:
    """As delivery checks do."""
    assert not repair.enabled(POLICY, "local")
    assert repair.enabled(POLICY, "slurm")
    assert not repair.enabled(POLICY.model_copy(update={"enabled": False}), "slurm")
    assert repair.enabled(POLICY.model_copy(update={"enabled": True}), "local")
