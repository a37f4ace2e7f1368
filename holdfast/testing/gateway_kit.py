"""A gateway in this process: real ledger and routes; Prefect, agents and playbook steps are fakes that record."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from holdfast.clock import FakeClock
from holdfast.deployments.gateway.app import create_app
from holdfast.deployments.gateway.detectors.probe import Probe
from holdfast.deployments.gateway.gateway import Gateway
from holdfast.deployments.gateway.runs.flow_runs import PlaybookRun, RunPhase, Suspended, idempotency_key
from holdfast.errors import HoldfastError, NoPlaybookError, UnavailableError
from holdfast.models.agent import (
    Frame,
    Heartbeat,
    JobOnMachine,
    RankPhase,
    RankState,
    Register,
    StackDump,
    StepMark,
    StepTimes,
    Vitals,
)
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.checkpoint import Choice
from holdfast.models.job import Job, JobSpec, JobState
from holdfast.models.machine import Machine, MachineState, Scope
from holdfast.models.rehearsal import Rehearsed
from holdfast.models.setback import Setback
from holdfast.operations import head_start
from holdfast.operations.context import Context
from holdfast.operations.resize import left_over
from holdfast.policies.config.policy import Policy
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger

SECRET = "the-secret"
JOB = "gpt"


class FakeRuns:
    """Prefect: runs are made once per idempotency key; tests set their states."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.away = False
        self.lacks: tuple[str, ...] = ()
        self.back_after: int | None = None
        self.created: list[str] = []
        self.calls = 0
        self.runs: dict[str, PlaybookRun] = {}
        self.offline_started: list[tuple[str, int]] = []
        self.started: list[tuple[str, dict[str, object]]] = []
        self.resumed: list[tuple[str, dict[str, object]]] = []
        self.cancelled: dict[str, str] = {}
        """Reason, by run."""

    async def create(self, incident: Incident) -> str:
        self.calls += 1
        if self.back_after is not None and self.calls > self.back_after:
            self.away, self.lacks = False, ()
        if self.away:
            raise UnavailableError("Prefect's API: ConnectError")
        if (name := incident.incident_class.replace("_", "-")) in self.lacks:
            raise NoPlaybookError(f"Prefect has no deployment {name}/{name}: run `prefect deploy --all`")
        key = idempotency_key(incident)
        if key not in self.runs:
            self.created.append(key)
            self.set(key, RunPhase.RUNNING)
        return key

    async def start(self, deployment: str, parameters: dict[str, object], key: str) -> None:
        if self.away:
            raise UnavailableError("Prefect's API: ConnectError")
        if key not in self.runs:
            self.started.append((deployment, parameters))
            self.set(key, RunPhase.RUNNING)

    async def read(self, run_id: str) -> PlaybookRun | None:
        if self.away and not run_id.startswith("offline"):
            raise UnavailableError("Prefect's API: ConnectError")
        return self.runs.get(run_id)

    async def ping(self) -> tuple[str, ...]:
        if self.away:
            raise UnavailableError("Prefect's API: ConnectError")
        return self.lacks

    async def resume(self, run_id: str, answer: dict[str, object]) -> None:
        if self.away:
            raise UnavailableError("Prefect's API: ConnectError")
        self.resumed.append((run_id, answer))
        self.set(run_id, RunPhase.RUNNING)

    async def suspended(self) -> list[Suspended]:
        if self.away:
            raise UnavailableError("Prefect's API: ConnectError")
        waiting = (run.id for run in self.runs.values() if run.phase is RunPhase.SUSPENDED)
        return [Suspended(id=each, incident=each.partition("#")[0]) for each in waiting]

    async def cancel(self, run_id: str, why: str) -> bool:
        if self.away:
            raise UnavailableError("Prefect's API: ConnectError")
        if self.runs[run_id].phase is not RunPhase.SUSPENDED:
            return False
        self.cancelled[run_id] = why
        self.set(run_id, RunPhase.FAILED)
        return True

    async def offline(self, incident: Incident) -> str:
        self.offline_started.append((incident.id, incident.attempt))
        run_id = f"offline:{incident.id}:{incident.attempt}"
        self.set(run_id, RunPhase.RUNNING, alive=True)
        return run_id

    def set(self, key: str, phase: RunPhase, *, alive: bool | None = None, message: str = "") -> None:
        self.runs[key] = PlaybookRun(
            id=key, phase=phase, state=phase.value, since=self._clock.now(), alive=alive, message=message
        )


class FakeProber:
    """Agents: all alive but those in ``dead`` (refuse) and ``slow`` (do not answer in time)."""

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.slow: set[str] = set()
        self.asked: list[str] = []

    async def probe(self, machine: Machine) -> Probe:
        self.asked.append(machine.name)
        if machine.name in self.dead:
            return Probe(machine=machine.name, alive=False, detail="connection refused")
        if machine.name in self.slow:
            return Probe(machine=machine.name, alive=False, detail="no answer", sure=False)
        return Probe(machine=machine.name, alive=True, detail="answers")


class FakeActs:
    """Playbook steps: the ledger changes as theirs would."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.calls: list[tuple[str, ...]] = []
        self.choices: list[Choice | None] = []
        self.launch_error: HoldfastError | None = None
        self.during_launch: Any = None
        self.left_to_upload = 0
        """Looks until the last step of an ended job is in S3."""
        self.services: Context | None = None
        """With which head starts are made; None: none is."""

    async def resolve(self, spec: JobSpec) -> JobSpec:
        self.calls.append(("resolve", spec.name))
        return spec

    async def launch(self, job: str, reason: str, choice: Choice | None = None) -> None:
        self.choices.append(choice)
        self.calls.append(("launch", job, reason))
        if self.launch_error:
            raise self.launch_error
        known = self._ledger.job(job)
        if not known.machines:
            claimed = self._ledger.claim_standbys(job, known.spec.machines)
            self._ledger.set_job(job, machines=[machine.name for machine in claimed])
        start_epoch(self._ledger, job)
        if self.during_launch:
            await self.during_launch()
        self._ledger.set_job(job, state=JobState.RUNNING)

    async def hold(self, job: str, at_step: int | None) -> None:
        self.calls.append(("hold", job, str(at_step)))
        self._ledger.set_job(job, state=JobState.RUNNING if at_step is None else JobState.PAUSED)

    async def let_go_unheld(self, job: Job) -> bool:
        if not self._ledger.trains_unheld(job.name, job.epoch):
            return False
        self.calls.append(("let_go_unheld", job.name))
        return True

    async def stop(self, job: str) -> None:
        self.calls.append(("stop", job))
        self._ledger.set_job(job, state=JobState.STOPPED)
        await self.free(job)

    async def halt(self, job: str) -> None:
        self.calls.append(("halt", job))

    async def persist_last(self, job: str) -> bool:
        self.calls.append(("persist_last", job))
        self.left_to_upload = max(0, self.left_to_upload - 1)
        return not self.left_to_upload

    async def free(self, job: str) -> None:
        self.calls.append(("free", job))
        for machine in self._ledger.machines(MachineState.ACTIVE, job):
            self._ledger.set_machine(machine.name, state=MachineState.STANDBY)

    async def release_unplaced(self, job: str) -> None:
        self.calls.append(("release_unplaced", job))
        serving = self._ledger.machines(MachineState.ACTIVE, job)
        for machine in left_over(self._ledger.job(job), serving):
            self._ledger.set_machine(machine.name, state=MachineState.STANDBY)

    async def take_out(self, machine: Machine, reason: str, scope: Scope) -> None:
        self.calls.append(("take_out", machine.name))
        self._ledger.set_machine(
            machine.name, state=MachineState.CORDONED, job=None, cordon_reason=reason, cordon_scope=scope
        )

    async def release(self, machine: str, incarnation: str) -> None:
        self.calls.append(("release", machine, incarnation))

    async def head_start(self, incident: Incident, *, keeps: bool) -> None:
        """Make it where it has services to make it with; else the playbook does all."""
        if self.services is not None:
            await head_start.head_start(self.services, incident, keeps=keeps)

    async def stacks(self, machine: Machine, job: str, epoch: int) -> list[StackDump]:
        self.calls.append(("stacks", machine.name, job, str(epoch)))
        frame = Frame(function="all_reduce", file="torch/distributed/<b>c10d</b>.py", line=7)
        return [
            StackDump(machine=machine.name, rank=number, pid=9, process_state="S", frames=(frame,))
            for number in self._ledger.job(job).ranks_of(machine.name)
        ]


@functools.cache
def _empty_ledger() -> bytes:
    """Return a ledger with its tables: made once for a process, as making them takes longer than most scenarios."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        ledger = Ledger(f"sqlite:///{path}")
        ledger.create()
        ledger.close()
        return path.read_bytes()


class Kit:
    """One gateway over one ledger; :meth:`restart` is a second gateway over the same."""

    def __init__(self, folder: Path, policy: Policy | None = None) -> None:
        self.policy = policy
        self.errors: list[Exception] = []
        self.ran: set[str] = set()
        self.clock = FakeClock()
        self.settings = Settings(home=folder, heartbeat_s=0.5)
        path = folder / "ledger.db"
        if not path.exists():
            path.write_bytes(_empty_ledger())
        self.ledger = Ledger(f"sqlite:///{path}", self.clock)
        self.runs = FakeRuns(self.clock)
        self.prober = FakeProber()
        self.acts = FakeActs(self.ledger)
        self._build()

    def _build(self) -> None:
        self.app: FastAPI = create_app(
            self.settings,
            self.ledger,
            self.clock,
            self.runs,
            prober=self.prober,
            acts=self.acts,
            secret=SECRET,
            policy=self.policy,
        )
        self.gateway: Gateway = self.app.state.gateway
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.app),
            base_url="http://gateway",
            headers={"Authorization": f"Bearer {SECRET}"},
        )

    async def restart(self) -> None:
        """Kill the gateway and start it again."""
        await self.gateway.stop()
        await self.http.aclose()
        self._build()
        await self.gateway.resume()
        await self.gateway.site.drain()

    async def close(self) -> None:
        await self.gateway.stop()
        await self.http.aclose()
        self.ledger.close()

    async def settled(self) -> None:
        """Let background work end."""
        await self.gateway.site.drain()

    async def register(self, name: str, incarnation: str = "i1") -> None:
        body = Register(
            machine=name, incarnation=incarnation, address=f"{name}:1", data_address=f"{name}:2", pid=1
        )
        await self.post("/v1/agents/register", body.model_dump(mode="json"))

    async def running_job(self, machines: int = 2, ranks: int = 2, standbys: int = 1) -> Job:
        """Return a job in epoch 1 on m0.., and standbys."""
        for number in range(machines + standbys):
            await self.register(f"m{number}")
        spec = JobSpec(name=JOB, script="train.py", machines=machines, ranks_per_machine=ranks)
        self.ledger.add_job(spec, "v1")
        self.ledger.add_version(JOB, "v1", "key", "first")
        claimed = self.ledger.claim_standbys(JOB, machines)
        self.ledger.set_job(JOB, machines=[m.name for m in claimed], state=JobState.RUNNING)
        start_epoch(self.ledger, JOB)
        await self.gateway.site.refresh()
        return self.ledger.job(JOB)

    async def post(self, path: str, body: object = None, status: int = 200) -> Any:
        answer = await self.http.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def get(self, path: str, status: int = 200) -> Any:
        answer = await self.http.get(path)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def alert(self, status: int = 200, **fields: Any) -> Any:
        body = {"kind": "rank_exit", "job": JOB, "at": self.clock.now()} | fields
        answer = await self.post("/v1/alerts", body, status)
        await self.settled()
        return answer

    async def crash(self, rank: int = 0, epoch: int = 1, status: int = 200, **evidence: Any) -> Any:
        """Report that a rank was killed (``cascade=True``: it only lost a peer)."""
        if not evidence.get("cascade"):
            evidence = {"signal": "SIGKILL", "exit_code": -9} | evidence
        return await self.alert(
            status, rank=rank, machine=f"m{rank // 2}", epoch=epoch, incarnation="i1", evidence=evidence
        )

    async def beat(
        self,
        machine: str,
        ranks: list[RankState] | None = None,
        *,
        epoch: int = 1,
        incarnation: str = "i1",
        marks: dict[int, float] | None = None,
        times: tuple[StepTimes, ...] = (),
        rehearsed: Rehearsed | None = None,
        setbacks: tuple[Setback, ...] = (),
        vitals: Vitals | None = None,
        silence_s: float = 0.0,
        status: int = 200,
    ) -> Any:
        """Return a heartbeat; times of ``marks`` are of the machine's own clock, at which the newest was just made."""
        steps = tuple(StepMark(step=step, at=at) for step, at in (marks or {}).items())
        run = JobOnMachine(job=JOB, epoch=epoch, ranks=tuple(ranks or ()), marks=steps, times=times)
        runs = (run.model_copy(update={"rehearsed": rehearsed, "setbacks": setbacks}),)
        body = Heartbeat(
            machine=machine,
            incarnation=incarnation,
            at=max((marks or {}).values(), default=self.clock.now()),
            jobs=runs if ranks is not None or marks or rehearsed or setbacks else (),
            vitals=vitals,
            silence_s=silence_s,
        )
        answer = await self.post("/v1/agents/heartbeat", body.model_dump(mode="json"), status)
        await self.settled()
        return answer

    async def tick(self, seconds: float = 1.0) -> None:
        """Run one round of the reconciler, after ``seconds``."""
        self.clock.advance(seconds)
        await self.gateway.site.refresh()
        await self.gateway.reconciler.tick()
        await self.settled()

    async def look_again(self, seconds: float = 1.0) -> None:
        """Check once the incidents that wait, after ``seconds``."""
        self.clock.advance(seconds)
        await self.gateway.site.refresh()
        await self.gateway.waiting.tick()
        await self.settled()

    def incidents(self) -> list[Incident]:
        """Return all incidents, oldest first."""
        return self.ledger.incidents()[::-1]

    def close_incident(self, incident_id: str) -> None:
        """Close the incident as the playbook's last step does."""
        self.ledger.set_incident(incident_id, state=IncidentState.RECOVERED)

    def metric(self, name: str, **labels: str) -> float:
        return self.gateway.site.metrics.registry.get_sample_value(f"holdfast_{name}", labels) or 0.0


def start_epoch(ledger: Ledger, job: str) -> int:
    """Open the next epoch in the ledger, as ``resume`` does."""
    epoch = ledger.next_epoch(job)
    known = ledger.job(job)
    ledger.open_epoch(job, epoch, ledger.max_step(job), known.code_version, known.machines, "test")
    return epoch


def rank(number: int, step: int, at: float, **fields: Any) -> RankState:
    """Return a rank that runs."""
    known = {"phase": RankPhase.RUNNING, "pid": 100 + number, "steps_done": step, "step_s": 0.1, "cpu_s": 0.0}
    return RankState.model_validate(known | {"rank": number, "step": step, "step_at": at} | fields)
