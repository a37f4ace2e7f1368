"""A real Prefect server, and real workers on it, for the tests of the worker."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psutil

from tests.e2e.waiting import end, free_ports, wait_for

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def prefect_server(folder: Path) -> Iterator[str]:
    """A server on SQLite in ``folder``; yields the URL of its API."""
    port = free_ports(1)
    env = os.environ | {
        "PREFECT_HOME": str(folder),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    server = (sys.executable, "-m", "holdfast.deployments.local.prefect_server", "server", "start")
    command = [*server, "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}/api"

        def healthy() -> bool:
            try:
                return httpx.get(f"{url}/health", timeout=10).status_code == 200
            except httpx.HTTPError:
                return False

        wait_for("Prefect server", healthy, timeout_s=200)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _client() -> httpx.Client:
    """Without kept connections: the server closes idle ones after five seconds, perhaps just when one is used.

    One that is refused is tried again for 1.5 s: a busy host does so for a moment to servers that listen.
    """
    transport = httpx.HTTPTransport(retries=3, limits=httpx.Limits(max_keepalive_connections=0))
    return httpx.Client(timeout=120, transport=transport)


@dataclass
class Api:
    """The few calls that the tests make, over plain HTTP."""

    url: str
    http: httpx.Client = field(default_factory=_client)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Call and decode; SQLite's server answers 503 while another writer holds its lock."""
        response = self.http.request(method, f"{self.url}{path}", json=body)
        for _ in range(600):
            if response.status_code != 503:
                break
            time.sleep(0.1)
            response = self.http.request(method, f"{self.url}{path}", json=body)
        response.raise_for_status()
        return response.json() if response.content else None

    def deploy(self, pool: str, flow: str, entrypoint: str) -> str:
        """Make a deployment; returns its id."""
        flow_id = self.ask("POST", "/flows/", {"name": flow})["id"]
        body = {"name": flow, "flow_id": flow_id, "entrypoint": entrypoint, "work_pool_name": pool}
        return str(self.ask("POST", "/deployments/", body)["id"])

    def create_run(self, deployment: str, **parameters: Any) -> str:
        """Create a run, due now; returns its id."""
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return str(self.ask("POST", f"/deployments/{deployment}/create_flow_run", body)["id"])

    def state(self, run: str) -> str:
        """Name of the run's state."""
        return str(self.ask("GET", f"/flow_runs/{run}")["state"]["name"])

    def message(self, run: str) -> str:
        """Message of the run's state."""
        return str(self.ask("GET", f"/flow_runs/{run}")["state"]["message"])

    def pid(self, run: str) -> int:
        """Process of the run, once known."""
        named: str = self.ask("GET", f"/flow_runs/{run}")["infrastructure_pid"] or "0"
        return int(named.rpartition(":")[2])

    def cancel(self, run: str) -> None:
        """Cancel a run as the UI's button does."""
        body = {"state": {"type": "CANCELLING", "name": "Cancelling"}, "force": False}
        self.ask("POST", f"/flow_runs/{run}/set_state", body)

    def retry(self, run: str) -> None:
        """Retry a run as the UI's button does."""
        body = {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}, "force": False}
        self.ask("POST", f"/flow_runs/{run}/set_state", body)

    def logs(self, run: str) -> list[str]:
        """Messages that the server has of this run."""
        found: list[str] = []
        while True:
            page = self.ask(
                "POST",
                "/logs/filter",
                {"logs": {"flow_run_id": {"any_": [run]}}, "limit": 200, "offset": len(found)},
            )
            found += [entry["message"] for entry in page]
            if len(page) < 200:
                return found


@dataclass
class Worker:
    """A worker process."""

    home: Path
    process: subprocess.Popen[bytes]

    @property
    def socket(self) -> Path:
        """Where it takes pokes."""
        return self.home / "run" / "worker.sock"

    def say(self, line: str) -> str:
        """Send one line to its socket; return its line, empty when no process listens."""
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(60)
                client.connect(str(self.socket))
                client.sendall(f"{line}\n".encode())
                return client.makefile().readline().strip()
        except OSError:
            return ""

    def status(self) -> dict[str, Any]:
        """The worker's own status."""
        answer = self.say("status")
        return dict(json.loads(answer)) if answer else {"connected": False, "warm": 0, "running": 0}

    def poke(self, run: str) -> None:
        """Start ``run`` at once."""
        assert self.say(str(UUID(run))) == "ok"

    def log(self) -> str:
        """The worker's log."""
        return (self.home / "worker.log").read_text()

    def family(self) -> list[psutil.Process]:
        """Its descendants: fork server and warm processes."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait_ready(self) -> None:
        """Until it is connected and has a warm process."""
        wait_for("worker ready", lambda: (s := self.status())["connected"] and s["warm"] >= 1, 180)


@contextmanager
def worker(home: Path, api_url: str, pool: str) -> Iterator[Worker]:
    """A worker process on ``pool``."""
    (home / "run").mkdir(parents=True, exist_ok=True)
    (home / "settings.env").write_text(
        f"HOLDFAST_PREFECT_API_URL={api_url}\nHOLDFAST_WORK_POOL={pool}\nHOLDFAST_WARM_RUNS=1\n"
    )
    with (home / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.deployments.worker", "--home", str(home)],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Worker(home, process)
    finally:
        end(process)


def gone(processes: list[psutil.Process]) -> bool:
    """None of them runs."""
    return not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in processes)
