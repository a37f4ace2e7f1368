"""Data of the status page, as JSON."""

from __future__ import annotations

import gzip
import json
from hashlib import sha256
from typing import ClassVar

import pytest

from holdfast.deployments.gateway.page import assets
from holdfast.deployments.gateway.page.answers import KEPT, Answers
from holdfast.deployments.gateway.page.rank_view import text_of
from holdfast.models.agent import StepTimes
from holdfast.models.alert import Alert, AlertKind, IncidentState
from holdfast.models.machine import MachineState
from holdfast.models.missing import Missing
from holdfast.models.wait import Wait
from holdfast.testing.gateway_kit import JOB, Kit, rank
from tests.page.world import SLOW, big_job

SINKS = (
    "http://",
    "https://",
    "//cdn",
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "eval(",
)
VENDORED = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


async def test_overview_has_jobs_machines_and_what_waits(kit: Kit) -> None:
    """One answer for the first view."""
    await big_job(kit)
    view = await kit.get("/v1/page/overview")
    (job,) = view["jobs"]
    assert (job["name"], job["step"], job["tp"], job["pp"], job["dp"]) == (JOB, 2400, 8, 4, 4)
    assert 0.9 < job["ettr"] < 1
    assert view["machines"]["state"].count("active") == 16
    assert [row["id"] for row in view["incidents"]] == ["gpt-2", "gpt-1"]
    assert view["asks"] == []


async def test_what_waits_for_a_person_is_shown_however_old(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its incident, beside the newest ones."""
    monkeypatch.setattr("holdfast.deployments.gateway.page.overview.RECENT", 1)
    await big_job(kit)
    kit.ledger.set_incident("gpt-1", state=IncidentState.NEEDS_HUMAN)
    now = kit.clock.now()
    kit.ledger.put_wait(
        Wait(incident_id="gpt-1", job=JOB, missing=Missing.CHANGE, why="x", since=now, next_at=now + 60)
    )
    view = await kit.get("/v1/page/overview")
    assert [(each["incident_id"], each["next_at"]) for each in view["waits"]] == [("gpt-1", now + 60)]
    assert [row["id"] for row in view["incidents"]] == ["gpt-2", "gpt-1"]


async def test_incidents_are_listed_with_how_many_there_are(kit: Kit) -> None:
    """Of many the newest; by job, machine, class and state; a name that is none finds nothing."""
    await big_job(kit)
    kit.ledger.set_incident("gpt-2", state=IncidentState.OPEN)

    async def listed(query: str) -> tuple[list[str], int]:
        view = await kit.get(f"/v1/page/incidents?{query}")
        return [row["id"] for row in view["incidents"]], view["count"]

    assert await listed("") == (["gpt-2", "gpt-1"], 2)
    assert await listed("limit=1") == (["gpt-2"], 2)
    assert await listed("state=recovered") == (["gpt-1"], 1)
    assert await listed("machine=m1&class=job_crash&job=gpt") == (["gpt-1"], 1)
    assert await listed("class=nan_loss") == await listed("job=No%20Such") == ([], 0)
    view = await kit.get("/v1/page/incidents?state=open")
    assert (view["classes"], view["states"]) == (["job_crash"], ["open", "recovered"])
    newest = await kit.get("/v1/incidents?class=job_crash&machine=m1")
    assert [row["id"] for row in newest] == ["gpt-1"]


async def test_late_heartbeats_are_shown_before_a_machine_is_lost(kit: Kit) -> None:
    """Once one is overdue; no word of machines that are heard, or out of service."""
    await kit.running_job(machines=2, standbys=1)
    for machine in ("m0", "m1", "m2"):
        await kit.beat(machine)
    kit.clock.advance(kit.gateway.site.window_s + 1)
    await kit.beat("m1")
    kit.ledger.set_machine("m2", state=MachineState.CORDONED)
    late = kit.gateway.site.window_s + 1
    machines = (await kit.get("/v1/page/overview"))["machines"]
    assert dict(zip(machines["name"], machines["late_s"], strict=True)) == {
        "m0": late,
        "m1": None,
        "m2": None,
    }
    late_s = {each["name"]: each["late_s"] for each in (await kit.get("/v1/status"))["machines"]}
    assert late_s == {"m0": late, "m1": None, "m2": None}


async def test_job_view_is_a_curve_with_incidents(kit: Kit) -> None:
    """Steps rise, break at each restart; the last point of the ETTR curve is the job's ETTR."""
    await big_job(kit)
    view = await kit.get(f"/v1/page/jobs/{JOB}")
    steps = [step for _, step in view["steps"] if step is not None]
    assert steps[-1] == 2400
    assert sum(step is None for _, step in view["steps"]) == 3
    assert view["ettr_curve"][-1][1] == pytest.approx(view["ettr"], abs=0.02)
    assert [row["id"] for row in view["incidents"]] == ["gpt-1", "gpt-2"]
    assert view["skipped_steps"] == [35, 70]
    await kit.get("/v1/page/jobs/nobody", status=404)


async def test_an_incident_links_to_its_run_where_prefect_has_one(kit: Kit) -> None:
    """A playbook that ran without Prefect has no page there."""
    await big_job(kit)
    run = "8c2d9e2c-0b63-4c9a-9b0e-7f5a5f0e2a11"
    kit.ledger.set_incident("gpt-1", flow_run_id=run)
    kit.ledger.set_incident("gpt-2", flow_run_id="offline:host:41:1000.00")
    linked = (await kit.get("/v1/page/incidents/gpt-1"))["flow_run"]
    assert linked.endswith(f"/runs/flow-run/{run}")
    assert (await kit.get("/v1/page/incidents/gpt-2"))["flow_run"] is None


async def test_slow_machine_stands_out_in_its_phase(kit: Kit) -> None:
    """Its ranks, in the backward pass and so in the whole step, nowhere else."""
    await big_job(kit)
    view = await kit.get(f"/v1/page/jobs/{JOB}/ranks")
    mine = set(range(SLOW * 8, SLOW * 8 + 8))
    found = dict(zip(view["phases"], map(set, view["outliers"]), strict=True))
    assert found.pop("backward") == found.pop("step") == mine
    assert not any(found.values())
    assert view["state"] == [view["states"].index("running")] * 128
    assert view["errors"]["8"].startswith("RuntimeError: CUDA error")


async def test_silent_and_ended_ranks_are_distinguished(kit: Kit) -> None:
    """No heartbeat, ended well, ended badly, stopped, starting."""
    await kit.running_job(machines=3, ranks=2)
    await kit.beat(
        "m0", [rank(0, 5, 1.0, phase="exited", exit_code=0), rank(1, 5, 1.0, phase="exited", exit_code=1)]
    )
    await kit.beat("m1", [rank(2, 5, 1.0, process_state="T"), rank(3, 0, 1.0, phase="starting")])
    view = await kit.get(f"/v1/page/jobs/{JOB}/ranks")
    states = [view["states"][state] for state in view["state"]]
    assert states == ["done", "failed", "stopped", "starting", "silent", "silent"]


async def test_one_rank_shows_groups_peer_error_and_stack(kit: Kit) -> None:
    """Everything that one looks for when a rank misbehaves."""
    await big_job(kit)
    view = await kit.get(f"/v1/page/jobs/{JOB}/ranks/16")
    assert view["place"] == {"tp": 0, "pp": 0, "dp": 2}
    assert [(group["kind"], group["index"]) for group in view["groups"]] == [("tp", 2), ("pp", 16), ("dp", 0)]
    assert view["peer"] not in (None, "m2")
    assert view["error"]["incident"] == "gpt-2"
    assert "train.py" in view["error"]["traceback"]
    stack = await kit.get(f"/v1/page/jobs/{JOB}/ranks/16/stack")
    assert [dump["rank"] for dump in stack["stacks"]] == [16]
    assert kit.acts.calls[-1] == ("stacks", "m2", JOB, "3")
    for wrong, status in ((128, 404), (-1, 422)):
        await kit.get(f"/v1/page/jobs/{JOB}/ranks/{wrong}", status=status)
        await kit.get(f"/v1/page/jobs/{JOB}/ranks/{wrong}/stack", status=status)


async def test_step_timeline_is_on_the_gateways_clock(kit: Kit) -> None:
    """A machine's own clock counts by its differences only; repeated and old steps are dropped."""
    await kit.running_job()
    kit.clock.advance(100)
    times = [StepTimes(step=n, at=9000.0 + n, s=1.0, phases={"forward": 0.4}) for n in (1, 2)]
    await kit.beat("m0", [rank(0, 2, 9002.0)], marks={2: 9002.5}, times=tuple(times))
    more = (times[1], StepTimes(step=3, at=9003.0, s=1.0, phases={"eval": 0.2, "forward": 0.4}))
    await kit.beat("m0", [rank(0, 3, 9003.0)], marks={3: 9003.5}, times=more)
    view = await kit.get(f"/v1/page/jobs/{JOB}/steps")
    (row,) = view["machines"]
    assert view["phases"] == ["forward", "eval"]
    now = kit.clock.now()
    assert [(step, round(now - at, 3)) for step, at, *_ in row["steps"]] == [(1, 1.5), (2, 0.5), (3, 0.5)]
    assert [phases for *_, phases in row["steps"]] == [[0.4], [0.4], [0.4, 0.2]]


async def test_step_times_are_bounded_and_forgotten(kit: Kit) -> None:
    """So many per machine, of the newest epoch, of jobs and machines that there are."""
    await kit.running_job()
    for begin in range(0, 200, 8):
        times = tuple(StepTimes(step=begin + n + 1, at=1.0, s=1.0) for n in range(8))
        await kit.beat("m0", [rank(0, begin, 1.0)], times=times)
    kept = kit.gateway.step_times.of(JOB)
    assert kept is not None
    assert [one.step for one in kept.machines["m0"]] == list(range(185, 201))
    await kit.beat(
        "m2", [rank(0, 1, 1.0)], times=(StepTimes(step=1, at=1.0),)
    )  # a standby: no machine of the job
    assert set(kept.machines) == {"m0"}
    kit.gateway.site.fleet.jobs = {}
    await kit.beat("m0", [rank(0, 1, 1.0)])
    assert kit.gateway.step_times.of(JOB) is None


async def test_unchanged_views_are_304_and_large_ones_gzipped(kit: Kit) -> None:
    """A browser that polls costs little."""
    await big_job(kit)
    path = f"/v1/page/jobs/{JOB}/ranks"
    first = await kit.http.get(path, headers={"Accept-Encoding": "gzip"})
    assert first.headers["content-encoding"] == "gzip"
    plain = await kit.http.get(path, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.json() == first.json()
    assert int(first.headers["content-length"]) < len(plain.content) / 2
    again = await kit.http.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = await kit.http.get(path, headers={"If-None-Match": '"old"'})
    assert other.status_code == 200


async def test_many_browsers_cost_one_view(kit: Kit) -> None:
    """Within its time an answer is made once; the store of answers is bounded."""
    made = []
    answers = Answers(fresh_s=60.0)

    class Asks:
        headers: ClassVar[dict[str, str]] = {}

    def make() -> dict[str, int]:
        made.append(1)
        return {"n": len(made)}

    for _ in range(5):
        answer = await answers.give(Asks(), "view", make, 0.0)  # type: ignore[arg-type]
        assert json.loads(answer.body) == {"n": 1}
    for number in range(3 * KEPT):
        await answers.give(Asks(), f"view {number}", make, 0.0)  # type: ignore[arg-type]
    assert len(answers._made) == KEPT
    assert len(answers._locks) <= KEPT


async def test_what_a_person_did_is_seen_at_once(kit: Kit) -> None:
    """However long the view is good enough for others: an eviction is in the next answer, with its audit."""
    await big_job(kit)
    kit.http.headers["X-Holdfast-By"] = "ada"
    paths = ("/v1/page/overview", "/v1/page/by-hand")
    before = [(await kit.http.get(path)).text for path in paths]
    (await kit.http.post("/v1/machines/m17/evict", json={"reason": "smells of smoke"})).raise_for_status()
    after = [(await kit.http.get(path)).text for path in paths]
    assert ["smells of smoke" in each for each in [*before, *after]] == [False, False, True, True]


def test_gzip_is_really_the_same() -> None:
    """The packed body unpacks to the plain one."""
    answer = Answers()._make(lambda: {"x": list(range(5000))})
    assert answer.packed is not None
    assert gzip.decompress(answer.packed) == answer.body


def test_vendored_files_are_the_published_ones() -> None:
    """The chart library is shipped unchanged, with its licence and version."""
    folder = assets.STATIC / "vendor" / "uplot"
    assert {name: sha256((folder / name).read_bytes()).hexdigest() for name in VENDORED} == VENDORED
    assert "uPlot 1.6.32" in (folder / "README").read_text()
    assert "MIT" in (folder / "LICENSE").read_text()


def test_no_file_names_another_host() -> None:
    """Nothing of ours loads from, or links to, anywhere else (a namespace is no address)."""
    for name, asset in assets.load().items():
        if "vendor" in name:
            continue
        text = asset.body.decode().replace("http://www.w3.org/2000/svg", "")
        for sink in SINKS:
            assert sink not in text, f"{name}: {sink}"


@pytest.mark.parametrize(
    ("evidence", "line"),
    [
        ({"error_type": "TypeError", "message": "x"}, "TypeError: x"),
        ({"signal": "SIGKILL"}, "rank_exit: SIGKILL"),
        ({"text": "odd"}, "rank_exit: odd"),
        ({}, "rank_exit"),
    ],
)
def test_an_alert_in_one_line(evidence: dict[str, str], line: str) -> None:
    """The first line of the rank's panel."""
    assert text_of(Alert(kind=AlertKind.RANK_EXIT, at=0.0, evidence=evidence)) == line
