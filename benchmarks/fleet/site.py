"""A control plane over a fleet: gateway, playbook worker, Prefect and S3 as ``holdfast up`` starts them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.fleet.driver import FleetDriver, socket_of
from holdfast.client.gateway import Gateway
from holdfast.deployments.local import control, pidfile
from holdfast.deployments.local.services import embedded
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.job import Job, JobSpec, JobState
from holdfast.models.machine import MachineState
from holdfast.paths import log_dir, shm_root
from holdfast.settings import Settings
from holdfast.storage import objects
from holdfast.storage.code import versions
from holdfast.storage.ledger import Ledger

ROOT = Path(__file__).parents[2]
RANKS = 8
SCRIPT = "train.py"
_UP_S = 60.0
_NOWHERE = "http://127.0.0.1:1"
# There is nothing that delivery checks could check. Rank logs are files that are not written here: looking for 9,600 of
# them each second would measure the fleet's process.
_POLICY = """\
standby: {admission: false}
detect: {intervals: {rank_log_s: 60}}
"""
_ENTRY_POINTS = """\
[holdfast.drivers]
fleet = benchmarks.fleet.driver:FleetDriver
"""


class FleetSite:
    """Operations of measurements and tests on the site."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.ledger = Ledger(settings.database)
        self.gateway = Gateway.open(settings)
        self.driver = FleetDriver(settings)
        self.code = settings.home / "code"
        self.code.mkdir(exist_ok=True)
        (self.code / SCRIPT).write_text("print('scripted')\n")

    @property
    def gateway_process(self) -> psutil.Process:
        """The gateway's process alone."""
        found = pidfile.running(self.settings.home, "gateway")
        assert found is not None, "the gateway does not run"
        return found

    def have_standbys(self, count: int, timeout_s: float = 120.0) -> None:
        """Have so many machines stand by; those that are missing are added to the fleet."""
        here = len(self.ledger.machines(state=MachineState.STANDBY))
        if here < count:
            self.driver.provision(count - here)
        self.wait(
            f"{count} standbys",
            lambda: len(self.ledger.machines(state=MachineState.STANDBY)) >= count,
            timeout_s,
        )

    def submit(self, name: str, machines: int) -> Job:
        """Start a job whose ranks are scripted; returns when each machine's ranks have made a step."""
        spec = JobSpec(
            name=name, script=SCRIPT, code=str(self.code), machines=machines, ranks_per_machine=RANKS
        )
        version = versions.store(objects.from_settings(self.settings), name, self.code)
        self.gateway.submit(spec, version)
        return self.ledger.job(name)

    def closed_incident(self, job: str, timeout_s: float) -> Incident:
        """The job's newest incident, once there is one and it is closed."""
        found: list[Incident] = []

        def closed() -> bool:
            found[:] = self.ledger.incidents(job=job, limit=1)
            return bool(found) and found[0].state is not IncidentState.OPEN

        self.wait(f"a closed incident of {job}", closed, timeout_s, every_s=0.2)
        return found[0]

    def wait(self, what: str, look: Any, timeout_s: float, every_s: float = 0.05) -> None:
        """Look until it is so.

        Raises:
            TimeoutError: it is not so in time; with the end of the gateway's log.
        """
        deadline = time.monotonic() + timeout_s
        while not look():
            if time.monotonic() > deadline:
                log = log_dir(self.settings.home) / "gateway.log"
                last = log.read_text(errors="replace").splitlines()[-30:] if log.exists() else []
                raise TimeoutError(f"{what}: not within {timeout_s:.0f} s\n" + "\n".join(last))
            time.sleep(every_s)

    def rest(self) -> None:
        """Stop what runs."""
        for job in self.ledger.jobs():
            if job.state not in (JobState.STOPPED, JobState.FAILED, JobState.DONE):
                self.gateway.command(job.name, "stop")


@contextlib.contextmanager
def fleet_site(
    home: Path,
    machines: int,
    port: int,
    *,
    heartbeat_s: float,
    policy: str = "",
    prefect: bool = True,
    **chosen: Any,
) -> Iterator[FleetSite]:
    """Bring everything up in ``home`` (new), and take it down again; ``chosen`` are further settings.

    Without ``prefect`` only the gateway and S3 run, and playbooks run as they do while Prefect is away.
    """
    home.mkdir(parents=True, exist_ok=True)
    plugin = home / "plugin" / "holdfast_fleet-1.dist-info"
    plugin.mkdir(parents=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast-fleet\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text(_ENTRY_POINTS)
    (home / "policy.yaml").write_text(_POLICY + policy)
    settings = Settings(
        home=home,
        port=port,
        driver="fleet",
        heartbeat_s=heartbeat_s,
        policy_file=home / "policy.yaml",
        **({} if prefect else {"prefect_api_url": _NOWHERE}),
        **chosen,
    )
    services = _whole if prefect else _without_prefect
    with _found_by_imports([str(plugin.parent), str(ROOT)]), _fleet_process(settings), services(settings):
        site = FleetSite(settings)
        site.have_standbys(machines)
        yield site


@contextlib.contextmanager
def _whole(settings: Settings) -> Iterator[None]:
    try:
        control.up(settings, 0, lambda _: None)
        yield
    finally:
        control.down(settings, lambda _: None)


@contextlib.contextmanager
def _without_prefect(settings: Settings) -> Iterator[None]:
    waiting = [service for service in embedded(settings) if service.name in ("s3", "gateway")]
    log_dir(settings.home).mkdir(parents=True, exist_ok=True)
    started: list[subprocess.Popen[bytes]] = []
    try:
        for service in waiting:
            with service.log(settings.home).open("w") as log:
                env = {**os.environ, **service.env}
                command = service.command
                started.append(
                    subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
                )
            if service.name == "gateway":
                pidfile.write(settings.home, "gateway", started[-1].pid)
        deadline = time.monotonic() + _UP_S
        while not all(service.healthy() for service in waiting):
            if time.monotonic() > deadline:
                raise TimeoutError("gateway and S3 did not come up")
            time.sleep(0.05)
        yield
    finally:
        for process in reversed(started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def _found_by_imports(folders: Sequence[str]) -> Iterator[None]:
    """Here and in every process that is started within."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *([before] if before else [])])
    sys.path[:0] = folders
    try:
        yield
    finally:
        for folder in folders:
            sys.path.remove(folder)
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@contextlib.contextmanager
def _fleet_process(settings: Settings) -> Iterator[None]:
    home = settings.home.resolve()
    control._prepare(settings)  # the fleet reads settings and secret from there
    command = [sys.executable, "-m", "benchmarks.fleet", "--home", str(home)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    with (home / "fleet.log").open("w") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + _UP_S
        while not socket_of(home).exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the fleet did not start: {(home / 'fleet.log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        subprocess.run(["rm", "-rf", str(shm_root(home))], check=False)
