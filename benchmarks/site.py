"""A control plane and machines of its own for the benchmarks, and jobs on it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.steps import Steps, wait
from holdfast.agent.client import AgentClient
from holdfast.client import job_code
from holdfast.client.gateway import Gateway
from holdfast.deployments.local import control
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.job import CheckpointPolicy, Elastic, JobSpec, JobState, Mode
from holdfast.models.machine import MachineState
from holdfast.paths import run_dir
from holdfast.secret import Keys
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger
from tests.e2e.waiting import free_ports

HERE = Path(__file__).parent
SCRIPT, SMALL_STEPS = "timed_train.py", "small_steps.py"
KEPT_SCRIPT = "timed_kept.py"
KILL_LOOP = ("kill_loop_train.py", "torchft_train.py")
MACHINES, STANDBYS = 4, 2
STEP_S = 0.05
TRAIN_ARGS = ("--steps", "1000000", "--step-seconds", str(STEP_S))
START_S = 90.0
RECOVER_S = 120.0
IN_SERVICE = (MachineState.ACTIVE, MachineState.STANDBY)


@dataclass(frozen=True)
class Site:
    """Running services, and the folder that keeps their state."""

    settings: Settings
    gateway: Gateway
    ledger: Ledger
    code: Path
    """The job's code: the example and the script that times it."""
    scratch: Path
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def more_machines(self, count: int) -> None:
        """Add so many machines, and wait until they stand by."""
        there = len(self.gateway.machines())
        control.up(self.settings.home, there + count, lambda _: None)
        self.wait_for_standbys(there + count)

    def folder(self) -> Path:
        """A new empty folder."""
        path = self.scratch / f"r{next(self._numbers)}"
        path.mkdir(parents=True)
        return path

    @contextlib.contextmanager
    def job(
        self,
        machines: int,
        ranks_per_machine: int,
        *,
        mode: Mode = Mode.ACT,
        slow_s: float = 0.0,
        script: str = SCRIPT,
        args: tuple[str, ...] = TRAIN_ARGS,
        env: Mapping[str, str] = MappingProxyType({}),
        least: int = 0,
        max_overhead: float | None = None,
    ) -> Iterator[RunningJob]:
        """A new job that has made some steps; stopped afterwards, its machines free again.

        ``least``: it may go on with so few machines; 0: with all only. ``max_overhead``: of its saves.
        """
        folder = self.folder()
        self.wait_for_standbys(machines)
        spec = JobSpec(
            name=f"bench-{folder.name}",
            script=script,
            args=args,
            code=str(self.code),
            machines=machines,
            elastic=Elastic(min=least, want=machines, max=machines) if least else None,
            ranks_per_machine=ranks_per_machine,
            env={"BENCH_STEPS": str(folder / "steps.jsonl"), "BENCH_SLOW": str(slow_s), **env},
            checkpoint=CheckpointPolicy(s3_every_steps=100, max_overhead=max_overhead),
            mode=mode,
        )
        self.gateway.submit(spec, job_code.store(self.settings, spec.name, self.code))
        running = RunningJob(self, spec, Steps(folder / "steps.jsonl"))
        try:
            running.steps.wait_for_calm(spec.world_size, START_S, running.why_dead)
            wait(lambda: worker_warm(self.settings), START_S, "a warm playbook process")
            wait(self.spares_there, START_S, "spare processes on all machines")
            yield running
        finally:
            if self.gateway.job(spec.name).state not in (JobState.FAILED, JobState.DONE):
                self.gateway.command(spec.name, "stop")

    def spares_there(self) -> bool:
        """Whether no machine is still forking processes for the next recovery: real faults seldom come that soon."""
        return asyncio.run(self._spares_missing()) == 0

    async def _spares_missing(self) -> int:
        async def missing(address: str) -> int:
            async with AgentClient(address, Keys(self.settings.secret_path)) as agent:
                return (await agent.state(shards=False)).spares_missing

        here = [known for known in self.gateway.machines() if known.state in IN_SERVICE]
        return sum(await asyncio.gather(*(missing(machine.address) for machine in here)))

    def wait_for_standbys(self, count: int) -> None:
        """Wait until so many machines stand by, and none is being made (that costs CPU)."""

        def supplied() -> bool:
            states = [machine.state for machine in self.gateway.machines()]
            return states.count(MachineState.STANDBY) >= count and MachineState.PROVISIONING not in states

        wait(supplied, START_S, f"{count} standbys")


@dataclass(frozen=True)
class RunningJob:
    """A job on the site."""

    site: Site
    spec: JobSpec
    steps: Steps

    @property
    def machines(self) -> tuple[str, ...]:
        """Names by slot."""
        return self.site.gateway.job(self.spec.name).machines

    def why_dead(self) -> str | None:
        """None while there is hope for it."""
        state = self.site.gateway.job(self.spec.name).state
        if state in (JobState.FAILED, JobState.DONE, JobState.STOPPED):
            summaries = [incident.summary for incident in self.site.gateway.incidents(self.spec.name)]
            return f"job {self.spec.name} is {state}: {'; '.join(summaries)}"
        return None

    def closed_incident(self) -> dict[str, Any]:
        """The job's newest incident with its actions, once it is closed as recovered."""
        found: list[Incident] = []

        def closed() -> bool:
            found[:] = self.site.gateway.incidents(self.spec.name)
            return bool(found) and all(incident.state is not IncidentState.OPEN for incident in found)

        wait(closed, RECOVER_S, f"the end of the incident of {self.spec.name}", self.why_dead)
        return self.site.gateway.incident(found[0].id)


@contextlib.contextmanager
def site(*, keep: bool = False) -> Iterator[Site]:
    """Bring everything up in a folder of its own, and take it down again."""
    home = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    # Every run of the machine benchmarks costs a machine: the breaker of the default policy would step in.
    os.environ["HOLDFAST_POLICY_FILE"] = str(HERE / "policy.yaml")
    os.environ["HOLDFAST_HOME"] = str(home)
    code = home / "bench" / "code"
    code.mkdir(parents=True)
    for script in (SCRIPT, KEPT_SCRIPT, SMALL_STEPS, *KILL_LOOP):
        shutil.copy(HERE / script, code)
    shutil.copy(HERE.parent / "examples" / "train_gpt.py", code)
    began, done = time.monotonic(), False
    try:
        settings = control.up(home, MACHINES + STANDBYS, lambda _: None, port=free_ports())
        print(
            f"site of {MACHINES + STANDBYS} machines up in {time.monotonic() - began:.0f} s: {home}",
            flush=True,
        )
        ledger = Ledger(settings.database)
        ledger.set_pool(STANDBYS, "benchmarks")
        with Gateway.open(settings) as gateway:
            yield Site(settings, gateway, ledger, code, home / "bench")
        done = True
    finally:
        control.down(home, lambda _: None)
        if done and not keep:
            shutil.rmtree(home, ignore_errors=True)
        else:
            print(f"logs are kept in {home}", flush=True)


def worker_warm(settings: Settings) -> bool:
    """Whether the playbook worker has a process that waits."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as line:
        line.settimeout(2.0)
        line.connect(str(run_dir(settings.home) / "worker.sock"))
        line.sendall(b"status\n")
        return f'"warm": {settings.warm_runs}' in line.recv(4096).decode()
    return False
