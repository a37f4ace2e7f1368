"""Commands that work: what they ask of the gateway, and what they print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.client import job_code
from holdfast.models.alert import Alert, AlertKind, Incident, IncidentClass, IncidentState
from holdfast.models.job import JobSpec, JobState
from holdfast.models.machine import MachineState
from holdfast.models.missing import Missing
from holdfast.models.setback import Place, Setback
from holdfast.models.wait import Wait
from holdfast.policies.restore.unsaved import unsaved
from holdfast.settings import HOME_NAME
from tests.cli.conftest import Cli
from tests.cli.fake_gateway import FakeGateway

SPEC = JobSpec(name="gpt", script="train.py", machines=1, ranks_per_machine=2)
INCIDENT = Incident(
    id="gpt-1",
    job="gpt",
    incident_class=IncidentClass.MACHINE_FAULT,
    state=IncidentState.RECOVERED,
    epoch=1,
    machine="m0",
    detected_at=1000.0,
    opened_at=1000.0,
    recovered_at=1001.5,
    reasons=("Xid 79: the GPU fell off the bus",),
)


@pytest.fixture
def job_file(project: Path) -> Path:
    (project / "train.py").write_text("print('hello')\n")
    path = project / "job.yaml"
    path.write_text("name: gpt\nscript: train.py\nmachines: 1\nranks_per_machine: 2\n")
    return path


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """Code that was stored, without an object store."""
    seen: list[tuple[str, Path]] = []

    def store(settings: object, job: str, code: Path) -> str:
        seen.append((job, code))
        return "v1"

    monkeypatch.setattr(job_code, "store", store)
    return seen


@pytest.mark.parametrize("command", ["status", "incidents", "machines", "pool", "incident gpt-1"])
def test_every_listing_prints_json(cli: Cli, gateway: FakeGateway, command: str) -> None:
    """``--json`` gives one JSON document and nothing else."""
    gateway.add_job(SPEC)
    gateway.incidents.append(INCIDENT)
    result = cli(*command.split(), "--json")
    assert result.status == 0
    assert json.loads(result.out)


def test_a_listing_that_leaves_incidents_out_reports_it(cli: Cli, gateway: FakeGateway) -> None:
    """On standard error, so that programs still read one JSON document."""
    gateway.incidents = [INCIDENT, INCIDENT]
    assert "newest" not in cli("incidents", "--limit", "3").err
    cut = cli("incidents", "--limit", "2", "--json")
    assert "only the newest 2 are listed" in cut.err
    assert len(json.loads(cut.out)) == 2
    assert cli("incidents", "--limit", "1001").status == 2


def test_incidents_are_filtered_by_the_gateway(cli: Cli, gateway: FakeGateway) -> None:
    """Each filter is one of the request's."""
    filters = {"job": "gpt", "state": "open", "class": "job_hang", "machine": "m1", "limit": "7"}
    gateway.add_job(SPEC)
    assert (
        cli("incidents", *(word for name, value in filters.items() for word in (f"--{name}", value))).status
        == 0
    )
    assert gateway.asked == filters


def test_a_class_that_the_gateway_does_not_know_is_wrong_usage(cli: Cli, gateway: FakeGateway) -> None:
    """As a state that is none; the gateway alone knows the classes of packages."""
    refused = cli("incidents", "--class", "nonsense")
    assert refused.status == 2
    assert "Invalid value for '--class'" in refused.err
    assert "query." not in refused.err


@pytest.mark.parametrize(
    ("command", "facts"),
    [
        ("pause gpt", {"job": "gpt", "command": "pause"}),
        ("resume gpt", {"job": "gpt", "command": "resume"}),
        ("stop gpt", {"job": "gpt", "command": "stop"}),
        ("evict m1 --reason hot", {"machine": "m1", "scope": "cluster"}),
        ("release m1", {"machine": "m1"}),
        ("approve gpt-1 --no", {"incident": "gpt-1", "approved": False}),
        ("wait gpt --timeout 0.01", {"job": "gpt", "status": 2}),
    ],
)
def test_every_act_is_printed_as_json(
    cli: Cli, gateway: FakeGateway, command: str, facts: dict[str, object]
) -> None:
    """The result, by name, and the line for people beside it."""
    gateway.add_job(SPEC)
    gateway.incidents.append(INCIDENT)
    result = cli(*command.split(), "--json")
    printed = json.loads(result.out)
    assert result.status == printed.get("status", 0)
    assert printed.items() >= facts.items()
    assert printed["message"]


def test_a_submission_that_starts_over_names_what_is_not_continued(
    cli: Cli, gateway: FakeGateway, job_file: Path, stored: list[tuple[str, Path]]
) -> None:
    """A name that was used does not go on; one whose job made no step has nothing to lose."""
    assert "former job" not in cli("submit", str(job_file), "--wait", "0").out
    for step, warned in ((0, False), (42, True)):
        gateway.add_job(SPEC, JobState.STOPPED)
        gateway.step = step
        out = cli("submit", str(job_file), "--wait", "0").out
        assert ("came to step 42, and is not continued: this one starts from zero" in out) is warned
        assert ("`holdfast resume gpt`" in out) is warned


def test_a_job_that_ends_without_a_step_is_not_reported_to_have_made_one(
    cli: Cli, gateway: FakeGateway, job_file: Path, stored: list[tuple[str, Path]]
) -> None:
    """A script that only prints why it does nothing here, and exits with status 0."""
    gateway.on_submit = lambda job: gateway.add_job(job.spec, JobState.DONE)
    out = cli("submit", str(job_file)).out
    assert "gpt: done, and no step was reported" in out
    assert "logs" in out


def test_a_submission_is_printed_as_json(
    cli: Cli, gateway: FakeGateway, job_file: Path, stored: list[tuple[str, Path]]
) -> None:
    """Progress goes to standard error."""
    gateway.on_submit = lambda job: setattr(gateway, "step", 3)
    result = cli("submit", str(job_file), "--json")
    assert json.loads(result.out).items() >= {"job": "gpt", "code_version": "v1", "step": 3}.items()
    assert "submitted" in result.err


def test_a_submission_says_what_checkpoints_cost(
    cli: Cli, gateway: FakeGateway, job_file: Path, stored: list[tuple[str, Path]]
) -> None:
    """Copies per machine and what is not protected, in the table and in the JSON."""
    gateway.step = 1
    out = cli("submit", str(job_file)).out
    assert "PROTECTS AGAINST" in out
    assert "x a rank's state at rest" in out
    assert "Not protected against:" in out
    gateway.jobs.clear()
    cost = json.loads(cli("submit", str(job_file), "--json").out)["checkpoint"]
    assert cost["copies_at_rest"] == cost["copies"]["own"] + cost["copies"]["peer"]
    assert cost["not_protected"]


def test_status_shows_where_the_prefect_password_lies(cli: Cli, gateway: FakeGateway, project: Path) -> None:
    """The file, never the password."""
    out = cli("status").out.replace("\n", "")
    assert "Prefect UI: http://127.0.0.1:" in out
    assert str(project / HOME_NAME / "prefect-auth") in out


def test_status_names_jobs_machines_and_ranks(cli: Cli, gateway: FakeGateway) -> None:
    """The table has the same facts as the JSON."""
    gateway.add_job(SPEC)
    out = cli("status").out
    assert "/ui/" in out
    assert "gpt" in out
    assert "97.0 %" in out
    assert "50.0 %" in out
    assert "undetected 90 s, pausing 1.00 s" in out
    assert "A RANK'S STATE" in out
    assert "64.0 MiB" in out
    assert "job_hang" in out
    assert "4242" in out
    assert "127.0.0.1:1" in out


def test_status_and_checkpoints_show_where_saves_fail(cli: Cli, gateway: FakeGateway) -> None:
    """One line each, with the machine and the reason."""
    gateway.add_job(SPEC)
    reports = {"m1": (Setback(place=Place.DISK, count=3, since=1.0, reason="No space left on device"),)}
    gateway.unsaved = list(unsaved(reports))
    out = " ".join(cli("status").out.split())
    assert "gpt: NOT SAVED: copies to the disk fail on m1 (3 since the last good one)" in out
    assert "No space left on device" in out


def test_status_shows_what_a_person_is_asked_and_what_is_waited_for(cli: Cli, gateway: FakeGateway) -> None:
    """The next action, with the command that answers; an incident shows its question too."""
    gateway.add_job(SPEC)
    gateway.incidents.append(INCIDENT)
    gateway.asks.append({"incident": "gpt-1", "question": "evict m0 (scope cluster): it needs a yes."})
    known = {
        "incident_id": "gpt-2",
        "job": "gpt",
        "missing": Missing.STANDBY,
        "why": "no standby within 60 s",
    }
    for runs_on in (False, True):
        gateway.waits = [Wait.model_validate(known | {"since": 0.0, "next_at": 86_400.0, "runs_on": runs_on})]
        out = " ".join(cli("status").out.split())
        assert "gpt-1 asks: evict m0 (scope cluster): it needs a yes." in out
        assert "`holdfast approve gpt-1`" in out
        assert "gpt-2 needs a person: no standby within 60 s. Job gpt " in out
        assert f"Job gpt {'runs on' if runs_on else 'stands still'}; tried again at 1970-01-0" in out
    gateway.add_job(SPEC, JobState.SCALED_TO_ZERO)
    assert "Job gpt stays at zero; tried again" in " ".join(cli("status").out.split())
    assert "evict m0 (scope cluster)" in " ".join(cli("incident", "gpt-1").out.split())


def test_incident_shows_reasons_and_actions(cli: Cli, gateway: FakeGateway) -> None:
    """One incident can be read afterwards: why, what, when."""
    gateway.incidents.append(INCIDENT)
    out = cli("incident", "gpt-1").out
    assert "Xid 79: the GPU fell off the bus" in out
    assert "evict:m0" in out
    assert "+0.50 s" in out
    assert "1.50 s" in out


def test_submit_stores_the_code_then_posts_the_job(
    cli: Cli, gateway: FakeGateway, job_file: Path, stored: list[tuple[str, Path]]
) -> None:
    """The code directory is relative to the job file; the job waits for its first step."""
    gateway.step = 1
    result = cli("submit", str(job_file))
    assert result.status == 0, result.err
    assert stored == [("gpt", job_file.parent)]
    path, body = gateway.calls[0]
    assert path == "/v1/jobs"
    assert body["code_version"] == "v1"
    assert body["spec"]["code"] == str(job_file.parent)
    assert "step 1" in result.out


def test_update_ships_a_new_version(
    cli: Cli, gateway: FakeGateway, job_file: Path, stored: list[tuple[str, Path]]
) -> None:
    """Lazy updates say so to the gateway."""
    gateway.add_job(SPEC.model_copy(update={"code": str(job_file.parent)}))
    assert cli("update", "gpt", "--lazy", "--note", "smaller batch").status == 0
    path, body = gateway.calls[0]
    assert path == "/v1/jobs/gpt/update"
    assert {"version": "v1", "when": "lazy", "note": "smaller batch"}.items() <= body.items()


def test_move_names_the_machine_and_what_is_wished(cli: Cli, gateway: FakeGateway) -> None:
    """The standby, the reason and the time left are optional."""
    gateway.add_job(SPEC)
    assert cli("move", "gpt", "m0").status == 0
    assert cli("move", "gpt", "m0", "--to", "m7", "--reason", "new fan", "--within", "120").status == 0
    (path, plain), (_, wished) = gateway.calls
    assert path == "/v1/jobs/gpt/move"
    assert {"machine": "m0", "to": "", "reason": "", "deadline_s": None}.items() <= plain.items()
    assert {"machine": "m0", "to": "m7", "reason": "new fan", "deadline_s": 120}.items() <= wished.items()


@pytest.mark.parametrize("verb", ["pause", "resume", "stop"])
def test_job_commands_reach_the_gateway(cli: Cli, gateway: FakeGateway, verb: str) -> None:
    """One command, one call."""
    gateway.add_job(SPEC)
    assert cli(verb, "gpt").status == 0
    assert gateway.calls == [(f"/v1/jobs/gpt/{verb}", None)]


@pytest.mark.parametrize("step", [0, 42])
def test_stop_promises_checkpoints_of_a_job_with_steps_alone(
    cli: Cli, gateway: FakeGateway, step: int
) -> None:
    """One without a Session has none."""
    gateway.add_job(SPEC)
    gateway.step = step
    out = cli("stop", "gpt").out
    assert ("holdfast checkpoints ls gpt" in out) == bool(step)
    assert ("no checkpoint of it: `holdfast resume gpt` starts" in out) == (not step)


def test_stop_of_a_job_that_is_done_says_so(cli: Cli, gateway: FakeGateway) -> None:
    """It was not stopped: nothing ran."""
    gateway.add_job(SPEC, JobState.DONE)
    assert "gpt: was done already" in cli("stop", "gpt").out


def test_evict_passes_scope_and_reason(cli: Cli, gateway: FakeGateway) -> None:
    """The scope defaults to the whole cluster."""
    assert cli("evict", "m0", "--reason", "smells of smoke").status == 0
    assert cli("evict", "m0", "--reason", "slow", "--scope", "job").status == 0
    assert gateway.calls == [
        ("/v1/machines/m0/evict", {"scope": "cluster", "reason": "smells of smoke"}),
        ("/v1/machines/m0/evict", {"scope": "job", "reason": "slow"}),
    ]


def test_an_exception_of_a_script_does_not_reach_the_terminal(cli: Cli, gateway: FakeGateway) -> None:
    """Title, clipboard and colours that its text asks for are shown as numbers; a program gets the text as it was."""
    text = "boom \x1b]52;c;cm0gLXJmIH4=\x07\x1b[2J\x9b31m \u202eevil"
    gateway.add_job(SPEC)
    gateway.incidents.append(
        Incident(
            id="gpt-1",
            job="gpt",
            incident_class=IncidentClass.USER_CODE_ERROR,
            state=IncidentState.OPEN,
            epoch=1,
            detected_at=1.0,
            opened_at=1.0,
            summary=text,
            reasons=(text,),
            alerts=(Alert(kind=AlertKind.RANK_EXIT, job="gpt", at=1.0, evidence={"message": text}),),
        )
    )
    for command in (("incidents",), ("incident", "gpt-1")):
        printed = cli(*command).out
        assert "boom" in printed
        assert all(sign.isprintable() or sign == "\n" for sign in printed)
    assert json.loads(cli("incidents", "--json").out)[0]["summary"] == text


def test_an_error_is_one_json_document_too(cli: Cli, project: Path) -> None:
    """A script parses standard output, whatever became of the command."""
    result = cli("machines", "--json")
    assert result.status == 1
    assert json.loads(result.out)["error"] in result.err


def test_machines_of_one_job_or_state(cli: Cli, gateway: FakeGateway) -> None:
    gateway.machines["m1"] = gateway.machines["m1"].model_copy(
        update={"state": MachineState.ACTIVE, "job": "gpt"}
    )
    every = json.loads(cli("machines", "--json").out)
    of_job = json.loads(cli("machines", "--job", "gpt", "--json").out)
    assert of_job == [every[1]]
    standing_by = json.loads(cli("machines", "--state", "standby", "--json").out)
    assert standing_by == [every[0]]
