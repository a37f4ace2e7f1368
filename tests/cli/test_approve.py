"""Answers to playbooks, and the documented exit statuses of ``holdfast wait``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.cli import approve as commands
from holdfast.client.gateway import Gateway
from holdfast.errors import UnavailableError
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.job import JobState
from tests.cli.conftest import Cli
from tests.cli.fake_gateway import FakeGateway
from tests.cli.test_commands import INCIDENT, SPEC

DOCS = Path(__file__).parents[2] / "docs" / "incident-classes.md"


@pytest.mark.parametrize(("options", "approve"), [((), True), (("--no",), False)])
def test_answer_goes_to_the_gateway(
    cli: Cli, gateway: FakeGateway, options: tuple[str, ...], approve: bool
) -> None:
    """With the person's name and the reason."""
    gateway.incidents = [INCIDENT]
    result = cli("approve", "gpt-1", *options, "--reason", "seen it")
    assert result.status == 0, result.err
    ((path, body),) = gateway.calls
    assert path == "/v1/incidents/gpt-1/approve"
    assert (body["approve"], body["reason"]) == (approve, "seen it")
    assert body["by"]


def test_answer_to_an_unknown_incident_is_refused(cli: Cli, gateway: FakeGateway) -> None:
    """One message."""
    result = cli("approve", "gpt-9")
    assert result.status == 1
    assert "gpt-9" in result.err


@pytest.mark.parametrize(
    ("state", "incident", "status", "text"),
    [
        (JobState.DONE, None, 0, "done"),
        (JobState.STOPPED, None, 10, "stopped."),
        (JobState.STOPPED, IncidentState.RECOVERED, 10, "stopped."),
        (JobState.FAILED, IncidentState.NEEDS_HUMAN, 11, "needs a human: why"),
        (JobState.STOPPED, IncidentState.STOPPED, 12, "stopped by the playbook of gpt-1: why"),
        (JobState.RUNNING, None, 2, "still running"),
    ],
)
def test_wait_reports_how_the_job_ended(  # noqa: PLR0917
    cli: Cli, gateway: FakeGateway, state: JobState, incident: IncidentState | None, status: int, text: str
) -> None:
    """By its exit status, for scripts; the reason is printed."""
    gateway.add_job(SPEC, state)
    ended: list[Incident] = []
    if incident is not None:
        ended = [INCIDENT.model_copy(update={"state": incident, "summary": "why"})]
    gateway.incidents = ended
    result = cli("wait", "gpt", "--timeout", "0.01")
    assert (result.status, text in result.out) == (status, True), result


def test_wait_goes_by_the_incidents_of_this_submission(cli: Cli, gateway: FakeGateway) -> None:
    """An earlier job of the same name was stopped by its playbook; this one by a person."""
    job = gateway.add_job(SPEC, JobState.STOPPED)
    former = {"state": IncidentState.STOPPED, "summary": "why", "opened_at": job.submitted_at - 1}
    gateway.incidents = [INCIDENT.model_copy(update=former)]
    result = cli("wait", "gpt", "--timeout", "0.01")
    assert (result.status, "playbook" in result.out) == (10, False), result


def test_wait_outlasts_a_gateway_that_is_away(
    cli: Cli, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it was heard: a gateway that is restarted ends no job."""
    gateway.add_job(SPEC, JobState.RUNNING)
    asked: list[str] = []

    def answers(_gateway: Gateway, name: str) -> tuple[int, str] | None:
        asked.append(name)
        if len(asked) == 2:
            raise UnavailableError("no gateway answers")
        return None if len(asked) < 3 else (0, "done.")

    monkeypatch.setattr(commands, "ended", answers)
    monkeypatch.setattr(commands, "_POLL_S", 0.0)
    assert cli("wait", "gpt").status == 0
    assert asked == ["gpt"] * 3


def test_exit_statuses_are_documented() -> None:
    """In the table of how playbooks end."""
    text = DOCS.read_text()
    assert set(re.findall(r"\| (1[012]) \|", text)) >= {"11", "12"}
    assert "one that a person stopped 10" in text
