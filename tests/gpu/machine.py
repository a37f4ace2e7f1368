"""A real agent on a machine with a GPU, as tests here have it: it follows the kernel's own log."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast import secret
from holdfast.agent.inspection.nvml import Nvml
from holdfast.models.agent import Diagnose
from holdfast.models.alert import Alert, AlertKind, Finding
from holdfast.paths import shm_root
from tests.agent.gateway import FakeGateway, until
from tests.agent.site import AgentProcess
from tests.gpu.recorded import measured, record

KMSG = Path("/dev/kmsg")
WAIT_S = 60.0
"""For what takes a second or two."""


@contextmanager
def machine(folder: Path, **env: str) -> Iterator[AgentProcess]:
    """One agent whose fork server has torch loaded; it is gone at the end, with all that it started."""
    gateway = FakeGateway()
    secret.create(folder / "secret")
    log = {"HOLDFAST_KERNEL_LOG": str(KMSG)} if KMSG.exists() else {}
    began = time.monotonic()
    agent = AgentProcess(folder, "m0", gateway, **log, **env)
    try:
        agent.ready()
        measured(f"an agent is ready {time.monotonic() - began:.1f} s after its start")
        yield agent
    finally:
        agent.stop()
        gateway.stop()
        record("agent.log", agent.agent_log())
        shutil.rmtree(shm_root(folder), ignore_errors=True)


async def diagnosed(agent: AgentProcess, check: str, processes: int = 1, **more: object) -> list[Finding]:
    """One check, as a recovery or a standby's inspection commands it; what it found is printed."""
    command = Diagnose.model_validate(
        {"job": "gpt", "epoch": 1, "incarnation": agent.incarnation, "check": check, "processes": processes}
        | {"timeout_s": 60.0, **more}
    )
    began = time.monotonic()
    async with agent.client as client:
        found = await client.diagnose(command)
    whole_s = time.monotonic() - began
    for each in found:
        value = f"{each.value:.4g} {each.unit}" if each.value is not None else each.digest
        measured(
            f"{check}, {whole_s:.2f} s: {'ok' if each.ok else 'NOT ok'}, {value}, busy {each.busy:.2f}, {each.kind}: "
            f"{each.detail[:300]}"
        )
    return found


def alerts(agent: AgentProcess, *kinds: AlertKind, since: float = 0.0) -> list[Alert]:
    """Alerts that the agent reported, of some kinds, and made at or after ``since``."""
    sent = [alert for report in list(agent.gateway.reports) for alert in report.alerts]
    return [alert for alert in sent if alert.kind in kinds and alert.at >= since]


def ended(agent: AgentProcess, job: str, ranks: int = 1) -> list[Alert]:
    """The alerts of ranks of a job that failed, once all of them did."""

    def seen() -> list[Alert] | None:
        found = agent.gateway.alerts(AlertKind.RANK_EXIT, job)
        return found if len(found) >= ranks else None

    return until(seen, WAIT_S, f"{ranks} ranks of {job} to end:\n{agent.log(job)[-2000:]}")


def used_bytes() -> int:
    """Memory of the GPU that is in use."""
    nvml = Nvml().loaded()
    return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0)).used)


def pids() -> set[int]:
    """Processes that have the GPU in use, as the driver lists them; a container may see none."""
    nvml = Nvml().loaded()
    listed = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(0))
    return {int(each.pid) for each in listed}
