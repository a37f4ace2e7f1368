"""Questions to a person: deadlines and answers."""

import pytest

from holdfast.deployments.gateway.runs.flow_runs import RunPhase
from holdfast.testing.gateway_kit import JOB, Kit

FIRST = f"{JOB}-1#1"


async def test_unanswered_question_gets_the_default_at_its_deadline(kit: Kit) -> None:
    """The run stays suspended until then; the answer is in the ledger before the run goes on."""
    await ask(kit, deadline_s=60.0)
    await kit.tick(59)
    assert kit.runs.resumed == []
    await kit.tick(2)
    ((run, answer),) = kit.runs.resumed
    assert run == FIRST
    assert (answer["approve"], answer["by"]) == (False, "the policy file")
    assert kit.ledger.actions(f"{JOB}-1")[-1].result == answer
    assert kit.runs.created == [FIRST]


@pytest.mark.parametrize("step_s", [-7200.0, 7200.0])
async def test_a_deadline_is_not_measured_by_a_clock_that_is_set(kit: Kit, step_s: float) -> None:
    """The gateway's wall clock is set by hours while a question is open: it is answered no sooner and no later."""
    await ask(kit, deadline_s=60.0)
    await kit.tick(1)
    kit.clock.set(kit.clock.now() + step_s)
    await kit.tick(50)
    assert kit.runs.resumed == []
    await kit.tick(20)
    assert [answer["by"] for _, answer in kit.runs.resumed] == ["the policy file"]


async def test_a_question_without_a_deadline_holds_nothing_up(kit: Kit) -> None:
    """A gateway that was killed while it took a person's late yes left one: it has the policy's deadline."""
    await ask(kit)
    kit.ledger.begin(f"{JOB}-1", 1, "approve:m0r1", "approve", {"question": "asked before", "target": "m0"})
    await kit.tick(1)
    assert kit.runs.resumed == []
    await kit.tick(kit.gateway.site.policy.approval.deadline_s)
    assert [answer["approve"] for _, answer in kit.runs.resumed] == [False]


@pytest.mark.parametrize("approve", [True, False])
async def test_a_person_answers_on_the_command_line(kit: Kit, approve: bool) -> None:
    """Once: a second answer finds no question."""
    await ask(kit)
    body = {"approve": approve, "by": "ann", "reason": "leaf 2 is being replaced"}
    await kit.post(f"/v1/incidents/{JOB}-1/approve", body)
    assert kit.runs.resumed == [(FIRST, body)]
    assert kit.ledger.actions(f"{JOB}-1")[-1].result == body
    await kit.post(f"/v1/incidents/{JOB}-1/approve", body, status=409)
    await kit.post(f"/v1/incidents/{JOB}-9/approve", body, status=404)


async def test_an_answer_that_prefect_missed_is_given_again(kit: Kit) -> None:
    """Prefect was away when the person answered; the run is resumed once it is back."""
    await ask(kit)
    kit.runs.away = True
    await kit.post(f"/v1/incidents/{JOB}-1/approve", {"approve": True})
    assert kit.runs.resumed == []
    kit.runs.away = False
    await kit.tick()
    assert [answer["approve"] for _, answer in kit.runs.resumed] == [True]
    await kit.tick()
    assert len(kit.runs.resumed) == 1


async def ask(kit: Kit, deadline_s: float = 1e6) -> None:
    """A crash whose playbook asks before it evicts."""
    await kit.running_job()
    await kit.crash()
    intent = {"question": "evict m0?", "deadline": kit.clock.now() + deadline_s, "default": "refuse"}
    kit.ledger.begin(f"{JOB}-1", 1, "approve:m0", "approve", intent)
    kit.runs.set(FIRST, RunPhase.SUSPENDED)
