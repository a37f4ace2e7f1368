"""A playbook without any Prefect server to talk to, as a process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from holdfast import secret
from holdfast.deployments.gateway.runs import offline as runs
from holdfast.deployments.local import control
from holdfast.models.alert import Classification, Incident, IncidentClass, IncidentState
from holdfast.models.job import JobSpec, JobState, Mode
from holdfast.settings import load
from holdfast.storage.ledger import Ledger
from tests.deployments.worker_kit import ROOT
from tests.e2e.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(800)]


@pytest.fixture
def incident(tmp_path: Path) -> Incident:
    """An open incident of a job that may only be observed."""
    secret.create(tmp_path / "secret")
    ledger = Ledger(load(tmp_path).database)
    ledger.create()
    spec = JobSpec(name="gpt", script="train.py", machines=1, ranks_per_machine=1, mode=Mode.OBSERVE)
    ledger.add_job(spec, "v1")
    ledger.set_job("gpt", state=JobState.RUNNING)
    found = Classification(incident_class=IncidentClass.JOB_CRASH, confidence=0.9, reasons=("test",))
    opened = ledger.open_incident("gpt", found, 1, [], time.time())
    ledger.close()
    return opened


OURS = ["-m", "holdfast.deployments.worker.offline"]
FOREIGN = ["-c", "from holdfast.deployments.worker import offline; offline.OWN = 'none.'; offline.main()"]
"""As for a playbook of another package, which may need a server."""


def offline(
    home: Path, incident: str, attempt: str = "1", how: Sequence[str] = OURS
) -> subprocess.CompletedProcess[str]:
    # As in production, where an API is configured that does not answer.
    env = os.environ | {"PREFECT_API_URL": "http://127.0.0.1:1/api"}
    command = [sys.executable, *how, incident, attempt, "--home", str(home)]
    return subprocess.run(
        command, cwd=ROOT, env=env, check=False, capture_output=True, text=True, timeout=350
    )


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(OURS, id="plainly"),
        pytest.param(FOREIGN, id="with a private server", marks=pytest.mark.thorough),
    ],
)
def test_playbook_runs_to_its_end_and_leaves_nothing(
    tmp_path: Path, incident: Incident, how: list[str]
) -> None:
    """The incident is worked on as always, and logged; a private server and its folder are gone afterwards."""
    ended = offline(tmp_path, incident.id, how=how)
    output = ended.stdout + ended.stderr
    assert ended.returncode == 0, output
    assert f"{incident.id}: job_crash of gpt" in output
    assert ("temporary server" in output) is (how == FOREIGN)
    ledger = Ledger(load(tmp_path).database)
    after = ledger.incident(incident.id)
    ledger.close()
    assert after.state is IncidentState.DISMISSED
    assert "observe only" in after.summary
    assert not list((tmp_path / "run").rglob("*.db"))

    wait_for("no server left", lambda: not any(_uses(each, tmp_path) for each in psutil.process_iter()))


def test_unknown_incident_is_refused_without_a_traceback(tmp_path: Path, incident: Incident) -> None:
    """One line that names it."""
    ended = offline(tmp_path, "gpt-99")
    assert ended.returncode == 1
    assert "gpt-99" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_later_attempt_ends_the_earlier_one_and_down_ends_it(
    tmp_path: Path, incident: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host without a free processor each took more time from the next; nothing acts after `holdfast down`."""
    endless = tmp_path / "endless"
    endless.write_text("#!/bin/sh\nexec sleep 600\n")
    endless.chmod(0o755)
    monkeypatch.setattr(runs.sys, "executable", str(endless))
    first = runs.spawn(tmp_path, incident)
    assert runs.read(first).alive
    second = runs.spawn(tmp_path, incident.model_copy(update={"attempt": 2}))
    assert second != first
    wait_for("the first ends", lambda: runs.read(first).alive is False)
    assert runs.read(second).alive
    control.down(tmp_path, keep_machines=True)
    assert runs.read(second).alive is False


def _uses(process: psutil.Process, home: Path) -> bool:
    try:
        return str(home) in process.environ().get("PREFECT_HOME", "")
    except psutil.Error:
        return False
