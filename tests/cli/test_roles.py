"""Roles as ``status`` prints them, and what a submission refuses before anything is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import roles
from holdfast.client import job_code
from holdfast.errors import SettingsError
from holdfast.models.job import JobSpec
from tests.cli.conftest import Cli
from tests.cli.fake_gateway import FakeGateway

ROW = {"waits_for": [], "unplaced": 0, "ready": False, "running": 0}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"waits_for": ["cache"]}, "waits for cache"),
        ({"unplaced": 2}, "no room for 2"),
        ({"own_machines": {"wanted": 2, "names": ["m3"]}, "running": 1}, "1 of 2 own machines"),
        ({"own_machines": {"wanted": 1, "names": []}, "unplaced": 2}, "0 of 1 own machines, no room for 2"),
        ({"own_machines": {"wanted": 1, "names": ["m3"]}, "running": 1}, "running"),
        ({"places": [{"phase": "failed"}]}, "1 needs a person"),
        (
            {"places": [{"phase": "failed"}] * 2, "unplaced": 1, "running": 1},
            "no room for 1, 2 need a person",
        ),
        ({"places": [{"phase": "done"}] * 2}, "done"),
        ({"places": [{"phase": "done"}, {"phase": "starting"}]}, "starting"),
        ({"ready": True}, "ready"),
        ({"running": 1}, "running"),
        ({}, "starting"),
    ],
)
def test_a_role_has_one_state(changes: dict[str, object], text: str) -> None:
    assert roles.state({**ROW, **changes}) == text


def test_roles_are_printed_with_what_needs_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing at all for jobs without roles; nothing of a job that ended, whose roles "started" for ever."""
    roles.show([{"name": "old", "state": "running"}])
    assert capsys.readouterr().out == ""
    place = {"phase": "failed", "index": 3, "why": "exit status 3 on m0"}
    role = {**ROW, "name": "rollout", "kind": "dynamic", "replicas": 4, "restarts": 7, "places": [place]}
    roles.show([{"name": "over", "state": "stopped", "roles": [role]}])
    assert capsys.readouterr().out == ""
    roles.show([{"name": "rl", "state": "running", "roles": [role]}])
    printed = capsys.readouterr().out
    assert "0 of 4" in printed
    assert "rl: rollout 3 needs a person: exit status 3 on m0" in printed


def test_an_unknown_script_of_a_role_is_refused(tmp_path: Path) -> None:
    """By its field."""
    (tmp_path / "train.py").write_text("")
    spec = JobSpec.model_validate(
        {
            "name": "rl",
            "script": "train.py",
            "machines": 1,
            "ranks_per_machine": 1,
            "roles": {"rollout": {"script": "rollout.py"}, "trainer": {}},
        }
    )
    with pytest.raises(SettingsError, match=r"roles.rollout.script = 'rollout.py': no such file"):
        job_code.check_scripts(tmp_path, spec)


def test_a_role_is_scaled(cli: Cli, gateway: FakeGateway) -> None:
    """By its name; a word that is none is refused before anything is sent."""
    gateway.add_job(JobSpec(name="rl", script="train.py", machines=1, ranks_per_machine=1))
    done = cli("scale", "rl", "8", "--role", "rollout", "--note", "more samples")
    assert (done.status, done.out) == (0, "rl: 8 replicas of rollout; the ranks are left alone.\n")
    path, body = gateway.calls[-1]
    assert (path, body["replicas"], body["note"]) == ("/v1/jobs/rl/roles/rollout/scale", 8, "more samples")
    wrong = cli("scale", "rl", "8", "--role", "../x")
    assert wrong.status != 0
    assert "--role: role '../x' is not a role's name" in wrong.err
    assert len(gateway.calls) == 1


def test_a_role_with_too_many_threads_has_a_warning(
    cli: Cli, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """When it is scaled, for this role alone, and by `status`."""
    gateway.add_job(JobSpec(name="rl", script="train.py", machines=1, ranks_per_machine=1))
    role = {**ROW, "name": "rollout", "kind": "dynamic", "replicas": 9, "restarts": 0, "places": []}
    rows = [{**role, "crowded": "9 threads"}, {**role, "name": "cache", "crowded": "3 threads"}]
    status = gateway._status()
    status["jobs"][0]["roles"] = rows
    monkeypatch.setattr(gateway, "_status", lambda: status)
    done = cli("scale", "rl", "9", "--role", "rollout")
    assert done.out == "rl: 9 replicas of rollout; the ranks are left alone.\n9 threads.\n"
    roles.show([{"name": "rl", "state": "running", "roles": rows}])
    assert "rl: 3 threads." in capsys.readouterr().out


def test_a_submission_warns_of_too_many_threads(
    cli: Cli, gateway: FakeGateway, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no refusal: the job is there."""
    (project / "train.py").write_text("")
    (project / "job.yaml").write_text(
        "name: rl\nscript: train.py\nmachines: 1\nranks_per_machine: 1\n"
        "roles: {rollout: {script: train.py, replicas: 3}}\n"
    )
    real = gateway._status

    def status() -> dict[str, Any]:
        status_now = real()
        for job in status_now["jobs"]:
            job["roles"] = [{"name": "rollout", "crowded": "3 threads"}]
        return status_now

    monkeypatch.setattr(gateway, "_status", status)
    monkeypatch.setattr(job_code, "store", lambda *_: "v1")
    done = cli("submit", "job.yaml", "--wait", "0")
    assert done.status == 0, done.err
    assert done.out.endswith("\n3 threads.\n")
    assert "rl" in gateway.jobs


def test_a_role_without_room_is_refused_before_its_code_is_stored(
    cli: Cli, gateway: FakeGateway, project: Path
) -> None:
    """One message that names the field and what there is."""
    (project / "train.py").write_text("")
    (project / "job.yaml").write_text(
        "name: rl\nscript: train.py\nmachines: 1\nranks_per_machine: 1\n"
        "roles: {rollout: {script: train.py, replicas: 3, per_machine: 2}}\n"
    )
    refused = cli("submit", "job.yaml")
    assert refused.status != 0
    assert "roles.rollout.replicas = 3: there is room for 2 (2 per machine on 1)" in refused.err
    assert gateway.calls == []
