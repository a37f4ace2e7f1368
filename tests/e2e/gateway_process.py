"""A gateway as a process of its own, without Prefect and without agents: for what does not need a whole site."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from holdfast import secret, tls
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger
from tests.e2e.waiting import end, free_ports, wait_for

NOWHERE = "http://127.0.0.1:1"
"""An address without a listener."""
POLICY = """\
gateway: {offline_after_s: 100000}
"""


class GatewayProcess:
    """A gateway's process, as tests use it."""

    def __init__(self, settings: Settings, process: psutil.Process) -> None:
        self.settings = settings
        self.process = process
        self.secret = secret.read(settings.secret_path)
        self.headers = {"Authorization": f"Bearer {self.secret}"}
        self.ledger = Ledger(settings.database)
        self.http = httpx.Client(
            base_url=settings.own_gateway, headers=self.headers, timeout=60, **tls.of(settings).http()
        )

    @property
    def resident_bytes(self) -> int:
        """Memory that it holds."""
        return int(self.process.memory_info().rss)

    @property
    def cpu_s(self) -> float:
        """Processor time that it took so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def gateway_process(
    home: Path, *, policy: str = POLICY, heartbeat_s: float = 60.0, **more: Any
) -> Iterator[GatewayProcess]:
    """It is up, over an empty ledger; with ``more`` settings than usual."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "policy.yaml").write_text(policy)
    settings = Settings(
        home=home,
        port=free_ports(),
        policy_file=home / "policy.yaml",
        prefect_api_url=f"{NOWHERE}/api",
        s3_endpoint=NOWHERE,
        heartbeat_s=heartbeat_s,
        **more,
    )
    secret.create(settings.secret_path)
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PREFECT_"))
    }
    env |= {
        f"HOLDFAST_{name.upper()}": str(getattr(settings, name))
        for name in ("port", "policy_file", "prefect_api_url", "s3_endpoint", "heartbeat_s", *more)
    }
    command = [sys.executable, "-P", "-m", "holdfast.deployments.gateway", "--home", str(home)]
    with (home / "gateway.log").open("w") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            wait_for("the gateway answers", lambda: _answers(settings))
            yield GatewayProcess(settings, psutil.Process(process.pid))
        finally:
            end(process)


def _answers(settings: Settings) -> bool:
    try:
        certified = tls.of(settings).http()
        return httpx.get(f"{settings.own_gateway}/healthz", timeout=5, **certified).is_success
    except httpx.HTTPError:
        return False
