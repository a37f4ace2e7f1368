"""A job whose checkpoints would not come back: found while it trains, reported with the path, over when it is fixed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.models.alert import Incident, IncidentClass, IncidentState
from holdfast.models.job import JobState
from holdfast.paths import machine_dir
from tests.agent.unrestorable import DAMAGE
from tests.e2e.site import EXAMPLES, Site
from tests.e2e.waiting import wait_for

SCRIPT = "train_unrestorable.py"


def doctor(site: Site, name: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and rows of ``holdfast doctor JOB``."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", "doctor", name, "--json"],
        capture_output=True,
        text=True,
        env=os.environ | {"HOLDFAST_HOME": str(site.home)},
        timeout=120,
        check=False,
    )
    assert done.stdout, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return done.returncode, rows


def restore_of(site: Site, name: str) -> str:
    """The state of the restore in ``holdfast status`` and on the status page."""
    jobs = site.http.get("/v1/status").json()["jobs"]
    return next(str(job["restore"]["told"]) for job in jobs if job["name"] == name)


@pytest.mark.thorough
def test_what_cannot_be_restored_is_found_while_the_job_trains(site: Site, name: str, tmp_path: Path) -> None:
    """Proofs of memory, peers and S3; the ranks are never touched; a later success ends the incident."""
    code = tmp_path / "code"
    shutil.copytree(EXAMPLES, code, ignore=shutil.ignore_patterns("__pycache__", "playbooks"))
    begin = 'import runpy\nrunpy.run_path("train_gpt.py", run_name="__main__")\n'
    (code / SCRIPT).write_text(DAMAGE + begin)
    machines = site.submit(name, code_dir=code, script=SCRIPT, s3_every=10).machines
    ranks = site.pids(name)

    def asked() -> Incident | None:
        found = site.incident(name)
        return found if found and found.state is not IncidentState.OPEN else None

    incident = wait_for(lambda: f"an incident that asks: {site.describe(name)}", asked, 180)
    assert incident.incident_class is IncidentClass.CHECKPOINT_UNRESTORABLE, site.describe(name)
    assert incident.state is IncidentState.NEEDS_HUMAN
    assert "not trusted" in incident.summary
    reported = restore_of(site, name)
    assert reported.startswith("NOT RESTORABLE: ")
    path = reported.removeprefix("NOT RESTORABLE: ").partition(":")[0]
    assert path in incident.summary
    status, rows = doctor(site, name)
    assert status == 1
    assert {row["proof"]["problems"][0]["path"] for row in rows if row["outcome"] == "failed"} >= {path}
    assert {row["tier"] for row in rows} == {"memory", "peer", "s3"}

    assert site.job(name).state is JobState.RUNNING
    assert site.pids(name) == ranks
    assert [each.epoch for each in site.epochs(name)] == [1]
    site.wait_more_steps(name)

    for machine in machines:
        (machine_dir(site.home, machine) / f"fixed-{name}").touch()
    site.wait_more_steps(name)
    wait_for("all that is saved is proven", lambda: memory_proven(doctor(site, name)[1]), 120)
    wait_for(
        lambda: f"the incident ends by itself: {site.describe(name)}",
        lambda: site.ledger.incident(incident.id).state is IncidentState.RECOVERED,
    )
    assert "restore proven at step" in restore_of(site, name)
    assert [each.id for each in site.ledger.incidents(job=name)] == [incident.id]
    assert site.pids(name) == ranks


def memory_proven(rows: list[dict[str, Any]]) -> bool:
    """Whether every rank's own shard is proven."""
    return all(row["outcome"] == "proven" for row in rows if row["tier"] == "memory")
