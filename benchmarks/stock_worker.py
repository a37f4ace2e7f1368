"""Stock Prefect workers (``--type process``) on work pools of their own, on the site's Prefect server."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from benchmarks import prefect_api
from benchmarks.steps import wait
from holdfast.deployments.worker.environment import client_environment
from holdfast.settings import Settings

QUERY_S = {"stock worker": None, "stock worker, 0.5 s poll": "0.5"}
"""Name -> seconds between polls; None: Prefect's default."""
_UP_S = 60.0
_END_S = 30.0


def pool_of(name: str) -> str:
    """Work pool of a worker."""
    return "bench-" + "".join(c if c.isalnum() else "-" for c in name)


@contextlib.contextmanager
def running(settings: Settings, folder: Path) -> Iterator[dict[str, str]]:
    """Start the workers; by name, the id of the deployment that each serves."""
    env = os.environ | client_environment(settings)
    workers = [_start(name, seconds, env, folder) for name, seconds in QUERY_S.items()]
    try:
        for name in QUERY_S:
            wait(lambda name=name: _online(settings, pool_of(name)), _UP_S, f"{name} to come up")  # type: ignore[misc]
        pools = [pool_of(name) for name in QUERY_S]
        flow = str(Path(__file__).with_name("stock_flow.py"))
        subprocess.run([sys.executable, flow, *pools], env=env, check=True, stdout=subprocess.DEVNULL)
        yield {name: _deployment(settings, pool_of(name)) for name in QUERY_S}
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            _ended(worker)


def _ended(worker: subprocess.Popen[bytes]) -> None:
    """Wait for a worker that was signalled to end; kill it where it does not, with what it started."""
    try:
        worker.wait(_END_S)
    except subprocess.TimeoutExpired:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def _start(name: str, seconds: str | None, env: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    pool = pool_of(name)
    command = [sys.executable, "-m", "prefect", "worker", "start", "--type", "process", "--pool", pool]
    known = env | ({"PREFECT_WORKER_QUERY_SECONDS": seconds} if seconds else {})
    with (folder / f"{pool}.log").open("wb") as log:
        return subprocess.Popen(
            command, env=known, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def _online(settings: Settings, pool: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        with prefect_api.client(settings) as prefect:
            answer = prefect.post(f"/work_pools/{pool}/workers/filter", json={})
        return answer.is_success and any(worker["status"] == "ONLINE" for worker in answer.json())
    return False


def _deployment(settings: Settings, pool: str) -> str:
    with prefect_api.client(settings) as prefect:
        answer = prefect.get(f"/deployments/name/stock/{pool}")
    answer.raise_for_status()
    return str(answer.json()["id"])
