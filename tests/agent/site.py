"""Real agent processes on loopback, and start commands for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import psutil
from pydantic import BaseModel

from holdfast import secret
from holdfast.agent.client import AgentClient
from holdfast.models.agent import Rendezvous, Start
from holdfast.models.checkpoint import RestoreOrder
from holdfast.paths import machine_dir, shm_dir
from holdfast.storage.code import versions
from tests.agent.gateway import FakeGateway, until

VERSION = "0123456789ab"
PATIENCE_S = 120.0
NOWHERE = Rendezvous(host="127.0.0.1", port=1)


class Patient(AgentClient):
    """Waits as long as a busy host needs, where the real caller gives an agent up after seconds."""

    async def _send(
        self,
        method: str,
        path: str,
        body: BaseModel | None,
        timeout_s: float | None,
        *,
        connect_s: float = PATIENCE_S,
    ) -> httpx.Response:
        limit_s = max(timeout_s or 0.0, PATIENCE_S)
        return await super()._send(method, path, body, limit_s, connect_s=max(connect_s, PATIENCE_S))


class AgentProcess:
    """One machine: its agent, its folders, a client."""

    def __init__(self, home: Path, machine: str, gateway: FakeGateway, **env: str) -> None:
        self.machine = machine
        self.home = home
        self.gateway = gateway
        self.folder = machine_dir(home, machine)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.shm = shm_dir(home, machine)
        gateway.registered.pop(machine, None)
        self._log = (self.folder / "agent.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.agent", "--machine", machine, "--home", str(home)],
            env=os.environ
            | {"HOLDFAST_PORT": str(gateway.port), "HOLDFAST_HEARTBEAT_S": "0.1"}
            | {"HOLDFAST_MACHINE_DIR": str(self.folder), **env},
            stdout=self._log,
            stderr=self._log,
        )

    def ready(self, timeout_s: float = 180.0) -> AgentProcess:
        """Wait until it registered."""
        until(lambda: self.machine in self.gateway.registered, timeout_s, f"{self.machine} to register")
        return self

    @property
    def incarnation(self) -> str:
        return self.gateway.registered[self.machine].incarnation

    @property
    def data_address(self) -> str:
        return self.gateway.registered[self.machine].data_address

    @property
    def client(self) -> AgentClient:
        address = self.gateway.registered[self.machine].address
        return Patient(address, secret.read(self.home / "secret"))

    def script(
        self,
        job: str,
        text: str,
        beside: Mapping[str, str] = MappingProxyType({}),
        links: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Check out a version of ``train.py``, the files ``beside``, and ``links`` in place of files; starts run it."""
        with tempfile.TemporaryDirectory() as folder:
            for name, content in {"train.py": text, **beside}.items():
                (Path(folder) / name).parent.mkdir(exist_ok=True)
                (Path(folder) / name).write_text(content)
            for name, target in links.items():
                (Path(folder) / name).unlink(missing_ok=True)
                (Path(folder) / name).symlink_to(target)
            version, archive = versions.pack(Path(folder))
        versions.place(archive, version, self.folder / "code" / job / version)

    def version(self, job: str) -> str:
        """The newest version that :meth:`script` made."""
        made = (self.folder / "code" / job.partition("~")[0]).glob("*.tar.gz")
        newest = max(made, key=lambda path: path.stat().st_ctime_ns, default=None)
        return newest.name.removesuffix(".tar.gz") if newest else VERSION

    def start(self, job: str, epoch: int = 1, **changes: Any) -> Start:
        """A start command for two ranks that need no rendezvous."""
        fields: dict[str, Any] = {
            "job": job,
            "epoch": epoch,
            "incarnation": self.incarnation,
            "script": "train.py",
            "code_version": self.version(job),
            "ranks": (0, 1),
            "world_size": 2,
            "rendezvous": NOWHERE,
            "restore": RestoreOrder(),
        }
        return Start(**(fields | changes))

    def log(self, job: str, rank: int = 0, epoch: int = 1) -> str:
        path = self.folder / "logs" / job / f"e{epoch}-r{rank}.log"
        return path.read_text() if path.exists() else ""

    def agent_log(self) -> str:
        """The agent's own log."""
        return (self.folder / "agent.log").read_text()

    def family(self) -> list[psutil.Process]:
        """Every process that the agent started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, how: int = signal.SIGTERM) -> int:
        """End it; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        status = self.process.wait(120)
        self._log.close()
        return status


def card(agent: AgentProcess) -> dict[str, Any]:
    """Its agent.json."""
    content: dict[str, Any] = json.loads((agent.folder / "agent.json").read_text())
    return content
