"""A driver whose machines are hosts of a lab; it reaches them over the network, as real engines do.

What runs on a host that it does not reach runs on when the host is given up: so it is with a node that Slurm sets down,
and with a pod that is deleted from a node that is not ready.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from holdfast.drivers.agent_starter import AgentStarter, start_alone
from holdfast.drivers.local import EvictedMarker, LocalDriver
from holdfast.models.machine import Scope
from holdfast.paths import ENV_MACHINE_DIR, machine_dir, shm_dir
from holdfast.settings import Settings

NAME = "lab"
REACH_S = 1.0
PORTS = "LAB_PORTS"
"""Environment variable: agents see the ports of their own host, as the kernel shows them."""
_DISCARD = 9
"""A port without a listener: a host that lives refuses."""


def write_hosts(home: Path, hosts: dict[str, tuple[str, str]]) -> None:
    """Namespace and address of each machine that there may be."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "hosts.json").write_text(json.dumps(hosts))


def write_package(folder: Path) -> Path:
    """Metadata by which Python finds the driver, as of an installed package."""
    info = folder / "holdfast_lab-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast-lab\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[holdfast.drivers]\n{NAME} = {__name__}:LabDriver\n")
    return folder


class LabDriver(LocalDriver):
    """As the local driver, but each machine is in its own namespace, and may be out of reach."""

    name = NAME

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.home)
        self._hosts: dict[str, tuple[str, str]] = json.loads((self.home / "hosts.json").read_text())

    def provision(self, n: int, group: str = "") -> list[str]:
        """As many as there are hosts left."""
        left = len(self._hosts) - self._roster.read().next_number
        return super().provision(max(0, min(n, left)), group)

    def evict(self, machine: str, scope: Scope, reason: str, incarnation: str = "") -> None:
        """Where the host is reached, all of it is killed; otherwise it is only given up."""
        if self.reaches(machine):
            super().evict(machine, scope, reason, incarnation)
            return
        marker = EvictedMarker(scope=scope, reason=reason, at=time.time())
        (machine_dir(self.home, machine) / "evicted.json").write_text(marker.model_dump_json())

    def reaches(self, machine: str) -> bool:
        """Whether the host answers at all."""
        try:
            socket.create_connection((self._hosts[machine][1], _DISCARD), REACH_S).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True

    def _boot(self, name: str, start: AgentStarter = start_alone) -> None:
        folder, (space, address) = machine_dir(self.home, name), self._hosts[name]
        folder.mkdir(parents=True, exist_ok=True)
        shm_dir(self.home, name).mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
        more = {
            ENV_MACHINE_DIR: str(folder),
            "HOLDFAST_HOME": str(self.home),
            "HOLDFAST_DRIVER": "local",  # all hosts have one kernel: what happens to it accuses none
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        enter = ["nsenter", f"--net=/run/netns/{space}"]
        if os.environ.get(PORTS):
            # With a /sys of the namespace's own, of which the agent reads the ports and nothing else.
            enter = ["ip", "netns", "exec", space]
            (folder / "sys/class").mkdir(parents=True, exist_ok=True)
            (folder / "sys/class/net").symlink_to("/sys/class/net")
        agent = [sys.executable, "-P", "-m", "holdfast.agent", "--machine", name, "--home", str(self.home)]
        with (folder / "agent.log").open("ab") as log:
            subprocess.run(
                ["setsid", "--fork", *enter, *agent, "--host", address],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=kept | more,
                check=True,
                timeout=60,
            )
