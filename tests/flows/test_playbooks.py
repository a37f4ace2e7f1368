"""Rules for all playbooks."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest
from prefect.flows import Flow

from holdfast.flows.resize_standby_pool import resize_standby_pool
from holdfast.models.alert import IncidentClass
from holdfast.tasks.pool import Sizing
from holdfast.tasks.recovery_context import Request

FLOWS = Path(__file__).parents[2] / "flows"
CLASSES = [each.value for each in IncidentClass]
LONGEST = 60
"""Lines of a playbook's file: longer ones are not read as a runbook any more."""


def playbook(name: str) -> Flow[..., object]:
    """The playbook of an incident class."""
    found: Flow[..., object] = getattr(importlib.import_module(f"holdfast.flows.{name}"), name)
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_every_incident_class_has_its_playbook(name: str) -> None:
    """File, function and flow carry the class's name."""
    flow = playbook(name)
    assert isinstance(flow, Flow)
    assert flow.name == name.replace("_", "-")
    assert flow.fn.__name__ == name
    assert flow.isasync


@pytest.mark.parametrize("name", CLASSES)
def test_playbooks_are_started_again_by_the_gateway_only(name: str) -> None:
    """A retry inside Prefect would act under an attempt's number that may be taken over."""
    flow = playbook(name)
    assert not flow.retries
    assert flow.persist_result is False


@pytest.mark.parametrize("name", CLASSES)
def test_playbooks_take_one_described_parameter(name: str) -> None:
    """People fill in the same form for each of them."""
    (parameter,) = inspect.signature(playbook(name).fn, eval_str=True).parameters.values()
    assert (parameter.name, parameter.annotation) == ("incident", Request)


@pytest.mark.parametrize("model", [Request, Sizing])
def test_every_field_of_a_form_is_described(model: type[Request | Sizing]) -> None:
    """The UI shows the description beside each field."""
    assert [name for name, field in model.model_fields.items() if not field.description] == []


def test_schedule_can_be_run_dry() -> None:
    """The scheduled flow has defaults for everything, and a way to change nothing."""
    (parameter,) = inspect.signature(resize_standby_pool.fn, eval_str=True).parameters.values()
    assert parameter.default == Sizing()
    assert Sizing().dry_run is False
    assert "dry_run" in Sizing.model_fields


@pytest.mark.parametrize("path", sorted(FLOWS.glob("*.py")), ids=lambda path: path.stem)
def test_playbooks_read_as_runbooks(path: Path) -> None:
    """Short, and without loops or handling of errors: that is the tasks' business."""
    source = path.read_text()
    assert len(source.splitlines()) <= LONGEST
    assert not [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Try, ast.While, ast.For))
    ]
