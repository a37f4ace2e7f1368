"""A whole site on loopback for end-to-end tests: every service real, every machine a process tree."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from holdfast import secret, settings
from holdfast.deployments.local import control
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.job import JobSpec
from holdfast.paths import run_dir
from holdfast.settings import Settings
from holdfast.storage import code, objects
from holdfast.storage.ledger import Ledger

Value = TypeVar("Value")

EXAMPLE = Path(__file__).parents[2] / "examples"
TINY = ("--layers", "1", "--width", "32", "--batch", "2", "--context", "32")


def free_ports(count: int = 3) -> int:
    """The first of ``count`` free ports in a row."""
    for base in range(21000 + os.getpid() % 2000, 60000, 7):
        try:
            for port in range(base, base + count):
                with closing(socket.socket()) as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise RuntimeError("no free ports")


def wait_for(what: str, look: Callable[[], Value | None], timeout_s: float = 30.0) -> Value:
    """Look until there is something true to see; fail with ``what`` when time is up."""
    deadline = time.monotonic() + timeout_s
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.05)


class Site:
    """What a test asks of a running site."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.settings: Settings = settings.load(home)
        self.ledger = Ledger(self.settings.database)
        self.http = httpx.Client(
            base_url=self.settings.gateway,
            headers={"Authorization": f"Bearer {secret.read(self.settings.secret_path)}"},
            timeout=30,
        )

    @classmethod
    def up(cls, home: Path, machines: int) -> Site:
        """Start everything in ``home``."""
        os.environ["HOLDFAST_HOME"] = str(home)
        home.mkdir(parents=True, exist_ok=True)
        chosen = Settings(home=home, port=free_ports())
        control.up(chosen, machines, lambda line: print(line))  # noqa: T201
        return cls(home)

    def down(self) -> None:
        """Stop everything."""
        control.down(self.settings)

    # Jobs

    def submit(self, name: str, *, steps: int, machines: int = 2, ranks: int = 1, **spec: Any) -> JobSpec:
        """Submit the example at a tiny size and wait for its first step."""
        job = JobSpec(
            name=name,
            script="train_gpt.py",
            args=("--steps", str(steps), *TINY, *spec.pop("args", ())),
            code=str(spec.pop("code", EXAMPLE)),
            machines=machines,
            ranks_per_machine=ranks,
            **spec,
        )
        version = code.store(objects.from_settings(self.settings), name, Path(job.code))
        answer = self.http.post(
            "/v1/jobs", json={"spec": job.model_dump(mode="json"), "code_version": version}
        )
        assert answer.is_success, answer.text
        return job

    def job(self, name: str) -> dict[str, Any]:
        """One job of the status listing."""
        listed = self.http.get("/v1/status").json()["jobs"]
        return next(job for job in listed if job["name"] == name)

    def wait_step(self, name: str, step: int, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait until the job runs and has done ``step``."""

        def look() -> dict[str, Any] | None:
            job = self.job(name)
            return job if job["state"] == "running" and job["step"] >= step else None

        return wait_for(f"{name} at step {step}; it is {self.job(name)}", look, timeout_s)

    def wait_more_steps(self, name: str, more: int, timeout_s: float = 60.0) -> None:
        """Wait for so many steps from now."""
        self.wait_step(name, self.job(name)["step"] + more, timeout_s)

    def rank(self, name: str, rank: int) -> dict[str, Any]:
        """One rank of a job: machine, pid, step."""
        found: dict[str, Any] = next(r for r in self.job(name)["ranks"] if r["rank"] == rank)
        return found

    # Incidents

    def incident(self, name: str) -> Incident | None:
        """The newest incident of a job."""
        return next(iter(self.ledger.incidents(job=name, limit=1)), None)

    def wait_closed(self, name: str, number: int = 1, timeout_s: float = 90.0) -> Incident:
        """Wait until the job's ``number``-th incident is closed."""

        def look() -> Incident | None:
            found = [i for i in self.ledger.incidents(job=name) if i.id == f"{name}-{number}"]
            return found[0] if found and found[0].state is not IncidentState.OPEN else None

        return wait_for(f"incident {name}-{number} closed", look, timeout_s)

    def wait_recovered(self, name: str, number: int = 1, timeout_s: float = 90.0) -> Incident:
        """Wait until the incident is recovered and the job makes new steps."""
        incident = self.wait_closed(name, number, timeout_s)
        assert incident.state is IncidentState.RECOVERED, incident.summary
        return wait_for(
            "a new step after recovery",
            lambda: i if (i := self.ledger.incident(incident.id)).recovered_at else None,
        )

    def actions(self, incident: Incident) -> dict[str, int]:
        """How often each kind of action was done."""
        counted: dict[str, int] = {}
        for action in self.ledger.actions(incident.id):
            if action.state == "done":
                counted[action.kind] = counted.get(action.kind, 0) + 1
        return counted

    # Processes

    def service(self, name: str) -> psutil.Process | None:
        """The process of an embedded service."""
        try:
            told = json.loads((run_dir(self.home) / f"{name}.json").read_text())
            process = psutil.Process(told["pid"])
        except (OSError, ValueError, psutil.NoSuchProcess):
            return None
        return process if process.is_running() else None

    def kill_service(self, name: str) -> None:
        """SIGKILL a service and all that it started."""
        process = wait_for(f"{name} runs", lambda: self.service(name))
        for victim in [*process.children(recursive=True), process]:
            try:
                victim.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue

    def settle(self) -> None:
        """Bring the site back to rest between tests: jobs stopped, machines back in the pool."""
        for job in self.http.get("/v1/status").json()["jobs"]:
            if job["state"] not in ("stopped", "failed", "done"):
                self.http.post(f"/v1/jobs/{job['name']}/stop").raise_for_status()


def run(coroutine: Any) -> Any:
    """Run a coroutine from a sync test."""
    return asyncio.run(coroutine)
