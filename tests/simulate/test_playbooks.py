"""The simulation takes the steps that the flows take."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.models.alert import IncidentClass
from holdfast.simulate.playbooks import NOT_SIMULATED, PLAYBOOKS, PlaybookStep, steps

FLOWS = Path(__file__).parents[2] / "flows"


def taken(statements: Sequence[ast.stmt]) -> Iterator[str]:
    """Names of the tasks that are awaited at the first attempt, in order.

    Of a choice the last branch is the general case; a branch that ends the flow is none.
    """
    for statement in statements:
        if isinstance(statement, ast.If):
            ends = isinstance(statement.body[-1], ast.Return | ast.Raise)
            yield from taken(statement.orelse or ([] if ends else statement.body))
        else:
            # In the order of evaluation: what is inside of a call comes before it.
            awaited = [node for node in ast.walk(statement) if isinstance(node, ast.Await)]
            for node in sorted(awaited, key=lambda node: (node.lineno, node.col_offset)):
                assert isinstance(node.value, ast.Call)
                assert isinstance(node.value.func, ast.Name)
                yield node.value.func.id


def flow(incident_class: IncidentClass) -> ast.AsyncFunctionDef:
    tree = ast.parse((FLOWS / f"{incident_class.value}.py").read_text())
    [found] = [node for node in tree.body if isinstance(node, ast.AsyncFunctionDef)]
    return found


@pytest.mark.parametrize("incident_class", PLAYBOOKS, ids=str)
def test_a_declaration_is_its_flow(incident_class: IncidentClass) -> None:
    """Task by task: a flow that gains a step is simulated with it, or this fails."""
    assert list(PLAYBOOKS[incident_class]) == list(taken(flow(incident_class).body))


def test_every_class_is_declared_or_has_no_fault() -> None:
    """A new class is either simulated or listed."""
    assert PLAYBOOKS.keys() | NOT_SIMULATED == set(IncidentClass)
    assert not PLAYBOOKS.keys() & NOT_SIMULATED


def test_every_step_is_a_step_of_some_playbook() -> None:
    """None is left of an earlier flow."""
    assert {step for each in PLAYBOOKS.values() for step in each} == set(PlaybookStep)


def test_a_class_of_a_package_recovers_as_from_a_crash() -> None:
    """Its flow is not known here."""
    assert steps(IncidentClass.SCALE_JOB) == PLAYBOOKS[IncidentClass.JOB_CRASH]


def test_the_reading_sees_what_a_flow_does() -> None:
    """The control: a step more, a step inside of an expression, a branch for later attempts."""
    source = """
async def playbook(case):
    if case.again:
        await pause(case)
        did = 1
    else:
        did = f"{await hold_at_boundary(case)}"
    if nothing:
        return None
    if not sure:
        verdict = proven(await diagnose(case))
    await resume(case)
"""
    [made] = ast.parse(source).body
    assert isinstance(made, ast.AsyncFunctionDef)
    assert list(taken(made.body)) == ["hold_at_boundary", "diagnose", "resume"]
