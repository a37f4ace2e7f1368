"""Decisions of the scenarios that are hard to get right, once more with real ranks, runs and questions.

What a person sees of them is looked at too: the command line, the status page, and Prefect's own questions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.models.alert import Incident, IncidentClass, IncidentState
from holdfast.models.history import ActionState
from holdfast.models.job import JobState
from tests.e2e.site import POLICY, Site
from tests.e2e.test_surroundings import hold, say, wait_suspended
from tests.e2e.waiting import wait_for

pytestmark = pytest.mark.thorough
ASKS = POLICY.replace("rules: [", "rules: [{incident_class: machine_fault}, ").replace(
    "slow_interval_s: 0.2", "slow_interval_s: 5"
)
"""Policy of a site that asks before each eviction, and looks for slow machines for 20 s."""


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site.up(tmp_path_factory.mktemp("asking") / ".holdfast", 4, ASKS)
    yield made
    made.down()


@pytest.fixture
def careful(asking: Site) -> Iterator[Site]:
    yield asking
    asking.settle()


def cli(site: Site, *words: str) -> str:
    """Output of a command."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", *words],
        env=os.environ | {"HOLDFAST_HOME": str(site.home), "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def page(site: Site, view: str) -> dict[str, Any]:
    """Data of a view of the status page."""
    answer = site.http.get(f"/v1/page/{view}")
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def wait_closed(site: Site, name: str, number: int = 1) -> Incident:
    """Wait until an incident of the job is closed, however."""

    def closed() -> Incident | None:
        found = site.incident(name, number)
        return found if found and found.state is not IncidentState.OPEN else None

    return wait_for(lambda: f"{name}-{number} is closed: {site.describe(name)}", closed)


def wait_asked(site: Site, name: str) -> str:
    """Wait until a playbook asks about the job; the question on the status page."""

    def asked() -> str | None:
        ask = page(site, f"jobs/{name}")["ask"]
        return ask["question"] if ask else None

    return wait_for(lambda: f"a question about {name}: {site.describe(name)}", asked)


def wait_cancelled(site: Site, run: str) -> str:
    """Wait until Prefect has the run as cancelled; the reason that it shows."""

    def cancelled() -> str | None:
        state = site.prefect.get(f"/flow_runs/{run}").json()["state"]
        return state["message"] if state["type"] == "CANCELLED" else None

    return wait_for(f"run {run} is cancelled", cancelled, every_s=0.5)


def report(site: Site, name: str, kind: str, machine: str) -> None:
    """A monitor outside reports a fault of the machine's present life."""
    body = {"kind": kind, "machine": machine, "incarnation": site.ledger.machine(machine).incarnation}
    body |= {"job": name, "evidence": {"device": "GPU 0"}}
    sent = site.http.post("/v1/alerts", json=body | {"at": site.ledger._clock.now()})
    assert sent.json()["outcome"] == "opened", sent.text


def test_a_rank_that_dies_while_a_slow_machine_is_looked_for_ends_the_search(
    careful: Site, name: str
) -> None:
    """All others wait for it: it is recovered at once, and the report names the work before it."""
    site = careful
    machines = site.submit(name, spare=0).machines
    say(site, name, IncidentClass.FAIL_SLOW)

    def votes() -> bool:
        found = site.ledger.actions(f"{name}-1")
        return any(each.kind == "vote" and each.state is ActionState.INTENT for each in found)

    wait_for(lambda: f"the vote has begun: {site.describe(name)}", votes)
    site.fault("kill-rank", machines[1])
    second = site.wait_recovered(name, 2)
    first = site.ledger.incident(f"{name}-1")
    assert first.state is IncidentState.DISMISSED, site.describe(name)
    assert second.incident_class is IncidentClass.JOB_CRASH
    assert "Handed over to a job_crash" in first.summary
    assert f"{name}-1 (fail_slow) was worked on until then" in cli(site, "incident", second.id)
    assert "Handed over" in page(site, f"incidents/{first.id}")["incident"]["summary"]
    assert site.job(name).machines == machines
    assert site.evicted() == set()
    assert site.done(first).keys() <= {"vote"}


def test_a_question_that_a_dead_rank_answers_is_taken_back(site: Site, name: str) -> None:
    """Its run is cancelled in Prefect: no person is asked what decides nothing any more."""
    machines = site.submit(name).machines
    say(site, name, IncidentClass.SILENT_CORRUPTION)
    _, run = wait_suspended(site, name)
    assert [each["job"] for each in page(site, "overview")["asks"]] == [name]
    site.fault("kill-rank", machines[1])
    second = site.wait_recovered(name, 2)
    assert second.incident_class is IncidentClass.JOB_CRASH, site.describe(name)
    assert f"{name}-1 is over (dismissed)" in wait_cancelled(site, run)
    assert page(site, "overview")["asks"] == []
    assert site.job(name).machines == machines


def test_the_question_about_a_job_that_is_stopped_is_taken_back(site: Site, name: str) -> None:
    """Asked of a run that a person started, which has no incident in its parameters."""
    hold(site, name)
    run = site.run_deployment("silent-corruption", {"incident": {"job": name, "reason": "the loss jumps"}})
    wait_suspended(site, name)
    site.http.post(f"/v1/jobs/{name}/stop").raise_for_status()
    assert f"{name}-1 is over" in wait_cancelled(site, run)


def test_a_signal_about_a_held_job_waits_where_people_see_it(site: Site, name: str) -> None:
    """Nothing is touched during the hold; its end evicts before a rank goes on."""
    machines = hold(site, name)
    pids = site.pids(name)
    site.fault("xid-79", machines[1])

    def kept() -> list[str]:
        found: list[str] = page(site, f"jobs/{name}")["kept_signals"]
        return found

    (signal,) = wait_for("the signal is kept", kept)
    assert f"{machines[1]}: Xid 79" in signal
    assert f"{name} is held: {signal}: acted on when the hold ends" in cli(site, "status")
    # A busy agent may not answer at once; a rank that ended does not come back.
    wait_for(lambda: f"ranks {pids}: {site.pids(name)}", lambda: site.pids(name) == pids)
    assert site.incident(name) is None
    step = site.step(name)
    site.http.post(f"/v1/jobs/{name}/resume").raise_for_status()
    incident = site.wait_recovered(name)
    assert incident.incident_class is IncidentClass.MACHINE_FAULT
    assert site.evicted() == {machines[1]}
    assert site.epochs(name)[-1].start_step >= step - 1
    assert kept() == []


def test_a_refused_command_line_is_shown_in_its_own_words(site: Site, name: str) -> None:
    """All ranks end with status 2: no machine is looked at, nothing is replayed, a person reads the message."""
    machines = site.submit(name, "--warm-up", "10", first=0).machines
    incident = wait_closed(site, name)
    assert incident.incident_class is IncidentClass.USER_CODE_ERROR, site.describe(name)
    assert incident.state is IncidentState.NEEDS_HUMAN
    assert "unrecognized arguments: --warm-up 10" in incident.summary
    assert "unrecognized arguments: --warm-up 10" in cli(site, "incidents", "--job", name)
    assert site.job(name).state is JobState.FAILED
    assert site.job(name).machines == machines
    assert set(site.done(incident)) == {"pause", "rung"}


def test_a_machine_that_came_back_while_its_eviction_was_asked_about_stays(careful: Site, name: str) -> None:
    """The yes was about its former life; a fault that lasts is found again."""
    site = careful
    machines = site.submit(name, spare=0).machines
    report(site, name, "gpu_row_remap_failed", machines[1])
    question = wait_asked(site, name)
    assert machines[1] in question
    before = site.ledger.machine(machines[1]).incarnation
    site.fault("kill-agent", machines[1])
    wait_for("its agent is gone", lambda: site.agent(machines[1]) is None)
    site.driver.release(machines[1])
    wait_for("it registers again", lambda: site.ledger.machine(machines[1]).incarnation != before)
    answer = {"approve": True, "by": "ann", "reason": "replace it"}
    site.http.post(f"/v1/incidents/{name}-1/approve", json=answer).raise_for_status()
    incident = site.wait_recovered(name)
    assert site.evicted() == set(), site.describe(name)
    assert site.job(name).machines == machines
    assert f"{machines[1]} restarted since and stays" in incident.summary


def test_after_a_no_the_job_runs_on_at_once(careful: Site, name: str) -> None:
    """A row that cannot be remapped keeps no rank from running."""
    site = careful
    machines = site.submit(name, spare=0).machines
    report(site, name, "gpu_row_remap_failed", machines[1])
    wait_asked(site, name)
    answer = {"approve": False, "by": "ann", "reason": "until tonight"}
    site.http.post(f"/v1/incidents/{name}-1/approve", json=answer).raise_for_status()
    incident = site.wait_recovered(name)
    assert "refused by ann: until tonight" in incident.summary
    assert "started in place" in incident.summary
    assert incident.attempt == 1
    assert site.job(name).machines == machines
    assert site.evicted() == set()
    assert dict(site.done(incident)) == {"pause": 1, "approve": 1, "start": 1, "verify": 1}
