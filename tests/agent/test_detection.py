"""From a fault below a real agent to the alert at the gateway, and what the agent costs."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from holdfast.models.agent import Fence
from holdfast.models.alert import Alert, AlertKind
from tests.agent.gateway import FakeGateway, until
from tests.agent.inspection import nvml_stub
from tests.agent.inspection.nvml_stub import StubGpus
from tests.agent.inspection.sysfs import FakeSys
from tests.agent.site import AgentProcess

pytestmark = pytest.mark.e2e

QUICK: dict[str, Any] = {
    "detect": {
        "intervals": {"host_s": 0.2, "gpu_s": 0.2, "network_s": 0.3, "storage_s": 0.5, "rank_log_s": 0.2},
        "storage": {"mount_timeout_s": 0.5},
    }
}
MAX_MIB = 80
_NUMBERS = itertools.count()
CHATTY = """
import time
print("step 1")
print("RuntimeError: CUDA error: an illegal memory access was encountered")
print("\\x1b[2J$(touch /tmp/never) " + "y" * 500000)
time.sleep(600)
"""


class Machine:
    """An agent whose GPUs, ports and mounts the test sets."""

    def __init__(self, home: Path, gateway: FakeGateway, name: str) -> None:
        self.gateway = gateway
        self.name = name
        policy = home / f"{name}.yaml"
        self.mount = home / f"{name}-data"
        self.mount.mkdir()
        QUICK["detect"]["storage"]["paths"] = [str(self.mount)]
        policy.write_text(yaml.safe_dump(QUICK))
        self.gpus = StubGpus(home / f"{name}-gpus")
        self.gpus.set()
        self.sys = FakeSys(home / "machines" / name / "sys")
        self.sys.infiniband()
        # Beside the gateway's port, where S3 is else, another process may listen.
        self.held_port = socket.socket()
        self.held_port.bind(("127.0.0.1", 0))
        self.agent = AgentProcess(
            home,
            name,
            gateway,
            HOLDFAST_PRELOAD="json",
            HOLDFAST_POLICY_FILE=str(policy),
            NVML_STUB=str(self.gpus.path),
            LD_LIBRARY_PATH=str(nvml_stub.build().parent),
            HOLDFAST_S3_ENDPOINT=f"http://127.0.0.1:{self.held_port.getsockname()[1]}",
        ).ready()

    def alert(self, kind: AlertKind) -> Alert:
        """The first alert of a kind, once it has come."""
        return until(lambda: self.alerts(kind), 60.0, f"an alert {kind}")[0]

    def alerts(self, kind: AlertKind) -> list[Alert]:
        """All alerts of a kind so far."""
        sent = [report for report in list(self.gateway.reports) if report.machine == self.name]
        return [alert for report in sent for alert in report.alerts if alert.kind is kind]


@pytest.fixture
def machine(home: Path, gateway: FakeGateway) -> Iterator[Machine]:
    found = Machine(home, gateway, f"d{next(_NUMBERS)}")
    yield found
    found.agent.stop()
    found.held_port.close()


async def test_faults_below_an_agent_become_alerts(machine: Machine) -> None:
    """GPU, port, kernel log, remote storage, mount and rank log: each through its real path."""
    agent = machine.agent
    until((agent.folder / "agent.json").exists, what="the agent")
    machine.gpus.gpu(1, uncorrected=9)
    assert machine.alert(AlertKind.GPU_ECC_UNCORRECTABLE).evidence["device"] == "GPU 1"
    machine.gpus.gpu(0, error=15)
    assert machine.alert(AlertKind.GPU_LOST).incarnation == agent.incarnation
    machine.sys.infiniband(state="1: DOWN")
    down = until(lambda: machine.alerts(AlertKind.NIC_DOWN)[1:], what="a port that stays down")
    assert down[0].evidence["device"] == "mlx5_0/1"
    with (agent.folder / "kernel.log").open("a") as log:
        log.write("EXT4-fs error (device sdb1): ext4_lookup:1611: inode #2\n")
    assert machine.alert(AlertKind.FILESYSTEM_ERROR).evidence["device"] == "sdb1"
    assert machine.alert(AlertKind.STORAGE_UNREACHABLE).evidence["error"].startswith("ConnectError")
    agent.script("gpt", CHATTY)
    async with agent.client as client:
        await client.start(agent.start("gpt", ranks=(0,), world_size=1))
        alert = machine.alert(AlertKind.RANK_LOG)
        assert (alert.job, alert.epoch, alert.rank) == ("gpt", 1, 0)
        assert (alert.evidence["pattern"], alert.evidence["cause"]) == ("cuda_illegal_access", "gpu")
        await client.fence(Fence(job="gpt", epoch=1, incarnation=agent.incarnation))
    assert not Path("/tmp/never").exists()


def test_a_mount_that_does_not_answer_is_reported_and_the_agent_goes_on(machine: Machine) -> None:
    """Its helper is stopped as if the kernel held it; heartbeats and other alerts still come."""
    helpers = until(lambda: _helpers(machine.agent), what="the helpers of the mounts")
    for helper in helpers:
        os.kill(helper.pid, signal.SIGSTOP)
    assert machine.alert(AlertKind.MOUNT_UNRESPONSIVE).evidence["limit"] == 0.5
    machine.gpus.gpu(0, remap_failed=1)
    assert machine.alert(AlertKind.GPU_ROW_REMAP_FAILED)


def test_the_agent_stays_small(machine: Machine) -> None:
    """Without torch, within its memory; every process of the machine ends with it."""
    process = psutil.Process(machine.agent.process.pid)
    helpers = until(lambda: _helpers(machine.agent), what="the helpers of the mounts")
    time.sleep(2.0)  # some rounds of every detector
    assert process.memory_info().rss < MAX_MIB << 20
    assert not [each.path for each in process.memory_maps() if "libtorch" in each.path]
    assert all(helper.memory_info().rss < 16 << 20 for helper in helpers)
    machine.agent.stop(signal.SIGKILL)
    until(lambda: not any(helper.is_running() for helper in helpers), what="the helpers to end")


def _helpers(agent: AgentProcess) -> list[psutil.Process]:
    return [each for each in agent.family() if any("mount_helper" in part for part in each.cmdline())]
