"""Alert accepted by the gateway to the playbook's first task line, beside stock Prefect workers."""

from __future__ import annotations

import datetime
import time

import httpx

from benchmarks import prefect_api, stock_worker
from benchmarks.site import START_S, RunningJob, Site, worker_warm
from benchmarks.steps import wait
from benchmarks.table import Row
from holdfast import secret
from holdfast.models.alert import Alert, AlertKind
from holdfast.models.job import Mode

_LINE_S = 60.0
SETTLE_S = 3.0
"""Before each sample, ours and theirs: the server still records what the run before left (on SQLite, it is busy)."""
NOTES = (
    "alert to first task line: by the log line's own time in Prefect. Ours counts from the gateway accepting an alert "
    "for a job in mode observe (the playbook says what it would do and touches nothing), a stock worker's "
    "from the request that creates a run of a flow with one task.",
)


def run(site: Site, n: int) -> list[Row]:
    """Two rows: our worker beside the stock ones, and the same by the ledger's clock."""
    lines: list[float] = []
    ledger: list[float] = []
    answered: list[float] = []
    with (
        site.job(1, 1, mode=Mode.OBSERVE) as job,
        stock_worker.running(site.settings, site.folder()) as stock,
    ):
        theirs: dict[str, list[float]] = {name: [] for name in stock}
        for turn in range(n):
            incident_id, took = _alert(job, turn)
            answered.append(took)
            incident = job.closed_incident()["incident"]
            assert incident["id"] == incident_id
            line = _first_task_line(site, str(incident["flow_run_id"]))
            lines.append(line - incident["detected_at"])
            ledger.append(incident["first_task_at"] - incident["detected_at"])
            for name, deployment in stock.items():
                time.sleep(SETTLE_S)
                theirs[name].append(_stock(site, deployment))
            peer_times = ", ".join(f"{name} {found[-1]:.2f}" for name, found in theirs.items())
            print(f"  alert to task {turn + 1}/{n}: holdfast {lines[-1]:.3f}, {peer_times} s", flush=True)
    details = {"ledger": ledger, "alert answered": answered}
    return [
        Row(
            what="alert accepted to the playbook's first task line",
            unit="s",
            samples=lines,
            target=0.3,
            peers=theirs,
            notes=NOTES,
            details=details,
        )
    ]


def _alert(job: RunningJob, turn: int) -> tuple[str, float]:
    """Send an alert of a new kind of trouble; the incident, and the seconds until the gateway answered."""
    settings = job.site.settings
    wait(lambda: worker_warm(settings), START_S, "a warm playbook process")
    alert = Alert(
        kind=AlertKind.MANUAL,
        job=job.spec.name,
        at=time.time(),
        fingerprint=f"bench-{turn}",
        evidence={"by": "benchmark", "text": "nothing is wrong", "class": "job_crash"},
    )
    headers = {"Authorization": f"Bearer {secret.read(settings.secret_path)}"}
    time.sleep(SETTLE_S)
    begun = time.perf_counter()
    answer = httpx.post(
        f"{settings.gateway}/v1/alerts", json=alert.model_dump(mode="json"), headers=headers, timeout=10.0
    )
    answer.raise_for_status()
    return str(answer.json()["incident"]), time.perf_counter() - begun


def _stock(site: Site, deployment: str) -> float:
    """Seconds from asking for a run of ``deployment`` to its first task line."""
    url = f"/deployments/{deployment}/create_flow_run"
    at, made = time.time(), []

    def make() -> bool:
        with prefect_api.client(site.settings) as prefect:
            answer = prefect.post(url, json={"idempotency_key": str(at)})
        if (
            answer.status_code != httpx.codes.SERVICE_UNAVAILABLE
        ):  # SQLite is busy: Prefect's client repeats too
            made.append(str(answer.raise_for_status().json()["id"]))
        return bool(made)

    wait(make, _LINE_S, f"a flow run from {url}")
    return _first_task_line(site, made[0]) - at


def _first_task_line(site: Site, flow_run_id: str) -> float:
    """When the first line of any task of a run was logged (Unix seconds)."""
    asked = {"logs": {"flow_run_id": {"any_": [flow_run_id]}}, "sort": "TIMESTAMP_ASC"}
    found: list[float] = []

    def logged() -> bool:
        with prefect_api.client(site.settings) as prefect:
            answer = prefect.post("/logs/filter", json=asked)
        answer.raise_for_status()
        found[:] = [
            datetime.datetime.fromisoformat(line["timestamp"]).timestamp()
            for line in answer.json()
            if line["task_run_id"]
        ]
        return bool(found)

    wait(logged, _LINE_S, f"a task's line of flow run {flow_run_id}")
    return min(found)
