"""A whole site on loopback: every service real, every machine a process tree."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from holdfast import drivers, secret, settings, tls
from holdfast.agent.wire import ENV_PATIENCE
from holdfast.deployments.local import control, pidfile
from holdfast.deployments.local.services import embedded
from holdfast.inject import Injected, inject
from holdfast.models.agent import AgentState, RankPhase, RankState
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.history import Epoch
from holdfast.models.job import CheckpointPolicy, Elastic, Job, JobSpec, JobState, Mode, Parallelism
from holdfast.models.machine import MachineState
from holdfast.models.start_from import StartFrom
from holdfast.paths import log_dir, shm_dir
from holdfast.settings import Settings
from holdfast.storage import objects
from holdfast.storage.code import versions
from holdfast.storage.ledger import Ledger
from tests.e2e.waiting import DEADLINE_S, free_ports, wait_for
from tests.prefect_http import PrefectHttp

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = ("--layers", "1", "--width", "32", "--batch", "2", "--context", "32", "--step-seconds", "0.05")
PATIENT = ("--step-seconds", "0.3")
FOR_EVER = 100_000
"""Steps of a job that the test stops."""
OVER = (JobState.STOPPED, JobState.DONE)
CONNECTS = 3
"""More attempts to connect, within 1.5 s: a busy host refuses connections to services that are up for a moment."""

# Dozens of deaths and evictions in a few minutes are the purpose here, also of machines that were broken, and
# repaired, by an earlier test; Prefect is taken for away a little sooner. A process of a busy host may stand still for
# ten seconds: that alone costs no machine (its lease is 12 s: missed_heartbeats), is no hang, and ends no kept process.
POLICY = """\
breaker: {at_least: 1000, job_at_least: 1000}
ladder: {offender: 1000, flaps: {count: 1000}}
spare_pool: {minimum: 1}
gateway: {offline_after_s: 10, missed_heartbeats: 8}
approval: {rules: [{incident_class: silent_corruption}]}
hang: {end_s: 10, min_window_s: 12}
diagnose: {slow_interval_s: 0.2}
elastic: {settled_s: 2}
keep_processes: {switch_s: 30}
"""


class Site:
    """A site, with the operations and questions of tests."""

    def __init__(self, home: Path) -> None:
        self.home = home.resolve()
        self.settings: Settings = settings.load(self.home)
        self.ledger = Ledger(self.settings.database)
        self.driver = drivers.from_settings(self.settings)
        self.store = objects.from_settings(self.settings)
        self.tls = tls.of(self.settings)
        self._every_step: set[str] = set()
        """Jobs of which each step is saved before the next one."""
        self.renew_secret()
        user, _, password = secret.prefect_auth(self.settings).partition(":")
        self.prefect = self._client(self.settings.prefect_api, PrefectHttp, auth=(user, password))

    @classmethod
    def up(cls, home: Path, machines: int, policy: str = POLICY, **more: Any) -> Site:
        """Start everything in ``home``, with ``more`` settings than usual."""
        home.mkdir(parents=True, exist_ok=True)
        file = home / "policy.yaml"
        file.write_text(policy)
        chosen = Settings(home=home, port=free_ports(), policy_file=file, **more)
        control.up(chosen, machines, print)
        return cls(home)

    @classmethod
    def start(cls, home: Path, machines: int) -> Site:
        """Start everything that the settings in ``home`` say."""
        control.up(home, machines, print)
        return cls(home)

    def renew_secret(self) -> None:
        """Talk to the gateway with the secret that its file holds now."""
        self.headers = {"Authorization": secret.of(self.settings).header}
        self.http = self._client(self.settings.gateway, headers=self.headers)

    def _client(self, url: str, kind: type[httpx.Client] = httpx.Client, **more: Any) -> httpx.Client:
        transport = httpx.HTTPTransport(retries=CONNECTS, **self.tls.http())
        return kind(base_url=url, timeout=60, transport=transport, **more)

    def down(self) -> None:
        """Stop everything."""
        control.down(self.home, print)

    # Jobs

    def submit(
        self,
        name: str,
        *args: str,
        steps: int = FOR_EVER,
        machines: int = 2,
        ranks_per_machine: int = 1,
        sizes: dict[str, int] | None = None,
        spare: int = 1,
        s3_every: int = 20,
        disk_every: int = 0,
        code_dir: Path = EXAMPLES,
        script: str = "train_gpt.py",
        mode: Mode = Mode.ACT,
        first: int = 3,
        parallelism: Parallelism = Parallelism(),  # noqa: B008  (frozen)
        every_step: bool = False,
        skip_bad_batches: int = 0,
        start_from: StartFrom | None = None,
        **choices: Any,
    ) -> Job:
        """Submit the example at a tiny size, once there are machines for it and ``spare`` standbys more.

        With ``every_step`` a save is complete before the next step is, however slow the host: steps are longer, and
        rather wait than leave a save out.
        ``sizes`` are those of an elastic job; ``choices`` are further fields of its checkpoint policy.
        Returns when it has done ``first`` steps.
        """
        self.have_standbys(machines + spare)
        spec = JobSpec(
            name=name,
            script=script,
            args=("--steps", str(steps), *TINY, *(PATIENT if every_step else ()), *args),
            env={ENV_PATIENCE: "60"} if every_step else {},
            code=str(code_dir),
            machines=machines,
            elastic=Elastic(**sizes) if sizes else None,
            ranks_per_machine=ranks_per_machine,
            parallelism=parallelism,
            checkpoint=CheckpointPolicy(s3_every_steps=s3_every, disk_every_steps=disk_every, **choices),
            mode=mode,
            skip_bad_batches=skip_bad_batches,
            start_from=start_from,
        )
        if every_step:
            self._every_step.add(name)
        version = versions.store(self.store, name, code_dir)
        request = {"spec": spec.model_dump(mode="json"), "code_version": version}
        answer = self._answered("/v1/jobs", request, lambda: self._stop_recorded(name))
        assert answer.is_success, answer.text
        self.wait_step(name, first)
        return self.job(name)

    def job(self, name: str) -> Job:
        """The job as the ledger has it."""
        return self.ledger.job(name)

    def step(self, name: str) -> int:
        """The newest step that the job's agents know, whatever the control plane does."""
        return max((rank.step for rank in self._ranks(name)), default=0)

    def pids(self, name: str) -> dict[int, int]:
        """Process of each live rank, once all agents of the job have answered: on a busy host one may be late."""

        def all_states() -> tuple[list[AgentState]] | None:
            states = [self.agent(machine) for machine in self.job(name).machines]
            there = [state for state in states if state]
            return (there,) if len(there) == len(states) else None

        (states,) = wait_for(lambda: f"all agents of {name} answer: {self.describe(name)}", all_states)
        ranks = [rank for state in states for run in state.jobs if run.job == name for rank in run.ranks]
        return {rank.rank: rank.pid for rank in ranks if rank.phase is not RankPhase.EXITED}

    def wait_step(self, name: str, step: int, timeout_s: float = DEADLINE_S) -> None:
        """Wait until the job has done ``step``."""
        # Every look asks all agents: they and the ranks have the same cores.
        wait_for(f"{name} at step {step}", lambda: self.step(name) >= step, timeout_s, every_s=0.15)

    def wait_more_steps(self, name: str, more: int = 5) -> None:
        """Wait for so many steps from now."""
        # None at all: no agent answered just now.
        self.wait_step(name, wait_for(f"a step of {name}", lambda: self.step(name)) + more)

    def wait_done(self, name: str, timeout_s: float = DEADLINE_S) -> None:
        """Wait until the job has done all its steps."""
        wait_for(
            lambda: f"{name} done: {self.describe(name)}",
            lambda: self.job(name).state is JobState.DONE,
            timeout_s,
        )

    def fault(self, fault: str, machine: str, rank: int | None = None) -> Injected:
        """Break something underneath; of a job that saves every step, while no peer is late with its copies.

        A copy that is later than a second, on a busy host, is not waited for, and costs steps if it is needed then.
        """
        self._wait_copied(machine)
        return inject(self.home, fault, machine, rank)

    def kill_machines(self, *machines: str) -> None:
        """Machines of a job lose power together: no playbook begins between two of them."""
        self._wait_copied(machines[0])
        with ThreadPoolExecutor() as together:
            list(together.map(lambda machine: inject(self.home, "kill-machine", machine, None), machines))

    def _wait_copied(self, machine: str) -> None:
        job = self.ledger.machine(machine).job or ""
        if job in self._every_step:
            wait_for(f"copies of {job}", lambda: self._copied(job), every_s=0.02)

    def _ranks(self, name: str) -> Iterator[RankState]:
        for machine in self.job(name).machines:
            state = self.agent(machine)
            for run in state.jobs if state else ():
                if run.job == name:
                    yield from run.ranks

    def _copied(self, name: str) -> bool:
        """Whether the peers have all shards of the step before the newest one, or a machine is broken already."""
        states = [self.agent(machine) for machine in self.job(name).machines]
        runs = [run for state in states if state for run in state.jobs if run.job == name]
        newest = max((rank.step for run in runs for rank in run.ranks), default=0)
        return None in states or all(run.replicated_step >= newest - 1 for run in runs)

    # Incidents

    def incident(self, name: str, number: int = 1) -> Incident | None:
        """The ``number``-th incident of a job."""
        found = [each for each in self.ledger.incidents(job=name) if each.id == f"{name}-{number}"]
        return found[0] if found else None

    def wait_recovered(self, name: str, number: int = 1, timeout_s: float = DEADLINE_S) -> Incident:
        """Wait until the incident is recovered and the job has made a step that it never made before."""

        def closed() -> Incident | None:
            found = self.incident(name, number)
            return found if found and found.state is not IncidentState.OPEN else None

        incident = wait_for(
            lambda: f"incident {name}-{number} closed: {self.describe(name)}", closed, timeout_s
        )
        assert incident.state is IncidentState.RECOVERED, self.describe(name)

        def went_on() -> Incident | None:
            found = self.ledger.incident(incident.id)
            return found if found.recovered_at else None

        return wait_for(f"a new step after {incident.id}", went_on)

    def describe(self, name: str) -> str:
        """Everything about a job's incidents, for messages."""
        lines = [
            f"{i.id} {i.incident_class} {i.state} {i.reasons} {i.summary}"
            for i in self.ledger.incidents(job=name)
        ]
        return "; ".join([*lines, str(self.job(name))])

    def done(self, incident: Incident) -> Counter[str]:
        """How often each kind of action was done; that a later attempt began is no action."""
        actions = self.ledger.actions(incident.id)
        return Counter(a.kind for a in actions if a.state == "done" and a.kind != "attempt")

    def attempts(self, incident: Incident) -> int:
        """How many attempts began; a run that no worker came to start in time is followed by another one."""
        return 1 + sum(action.kind == "attempt" for action in self.ledger.actions(incident.id))

    def epochs(self, name: str) -> list[Epoch]:
        """Epochs of a job, oldest first."""
        return self.ledger.epochs(name)

    def flow_run(self, incident: Incident) -> dict[str, Any]:
        """The incident's flow run, as Prefect has it."""
        answer = self.prefect.get(f"/flow_runs/{incident.flow_run_id}")
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def run_deployment(self, name: str, parameters: dict[str, Any]) -> str:
        """Start a run of a deployment as a person would; returns its id."""
        deployment = self.prefect.get(f"/deployments/name/{name}/{name}")
        deployment.raise_for_status()
        path = f"/deployments/{deployment.json()['id']}/create_flow_run"
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        run = self.prefect.post(path, json=body)
        run.raise_for_status()
        return str(run.json()["id"])

    def artifacts(self, run_id: str) -> list[dict[str, Any]]:
        """Artifacts of a flow run."""
        body = {"artifacts": {"flow_run_id": {"any_": [run_id]}}}
        answer = self.prefect.post("/artifacts/filter", json=body)
        answer.raise_for_status()
        found: list[dict[str, Any]] = answer.json()
        return found

    # Machines

    def agent(self, machine: str) -> AgentState | None:
        """The state that the machine's agent reports; None when it does not answer."""
        address = self.ledger.machine(machine).address
        try:
            url = f"{self.tls.scheme}://{address}/v1/state"
            with httpx.Client(headers=self.headers, timeout=10, **self.tls.http()) as http:
                answer = http.get(url, extensions=self.tls.to_agent())
            answer.raise_for_status()
        except httpx.HTTPError:
            return None
        return AgentState.model_validate_json(answer.content)

    def standbys(self) -> list[str]:
        """Machines that stand by."""
        return [machine.name for machine in self.ledger.machines(state=MachineState.STANDBY)]

    def evicted(self) -> set[str]:
        """Machines that are out of service."""
        return {machine.name for machine in self.ledger.machines(state=MachineState.CORDONED)}

    def memory_of(self, machine: str) -> list[Path]:
        """Files in a machine's shared memory."""
        return [path for path in shm_dir(self.home, machine).rglob("*") if path.is_file()]

    def have_standbys(self, count: int) -> None:
        """Repair what was evicted, and wait for ``count`` standbys."""
        self.release_evicted()
        wait_for(
            lambda: f"{count} standbys; there are {self.ledger.machines()}",
            lambda: len(self.standbys()) >= count,
        )

    def release_evicted(self) -> None:
        """Machines that tests broke are repaired: they start again, and stand by later."""
        for machine in self.evicted():
            self._ask(f"/v1/machines/{machine}/release")

    def _stop_recorded(self, name: str) -> None:
        """A submission that was recorded and not started, as the gateway was not sure that it leads."""
        if any(job.name == name and job.state not in OVER for job in self.ledger.jobs()):
            self._ask(f"/v1/jobs/{name}/stop")

    def _ask(self, path: str) -> None:
        self._answered(path).raise_for_status()

    def _answered(
        self, path: str, body: object = None, before_again: Callable[[], None] = lambda: None
    ) -> httpx.Response:
        """Have the gateway do something; again while its ledger or an agent does not answer (503), as a person does."""

        def taken() -> httpx.Response | None:
            answer = self.http.post(path, json=body)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                return answer
            before_again()
            return None

        return wait_for(f"the gateway does {path}", taken, every_s=0.5)

    def settle(self) -> None:
        """Back to rest: services up, jobs stopped, broken machines on their way back to the pool."""
        self.wait_well()
        for job in self.ledger.jobs():
            if job.state not in OVER:
                self._ask(f"/v1/jobs/{job.name}/stop")
        wait_for("no open incident", lambda: not self.ledger.incidents(state=IncidentState.OPEN))
        self.release_evicted()

    # Services

    def service(self, name: str) -> psutil.Process:
        """The process of an embedded service, or of their supervisor."""
        return wait_for(f"{name} runs", lambda: pidfile.running(self.home, name))

    def kill(self, *names: str) -> None:
        """SIGKILL services, each at once with all that it started."""
        for name in names:
            with suppress(psutil.NoSuchProcess):
                process = self.service(name)
                for victim in [process, *process.children(recursive=True)]:
                    with suppress(psutil.NoSuchProcess):
                        victim.kill()

    @contextmanager
    def unsupervised(self) -> Iterator[None]:
        """Within it, killed services stay dead; afterwards they come back."""
        supervisor = self.service("supervisor")
        supervisor.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            supervisor.send_signal(signal.SIGCONT)
            self.wait_well()

    def wait_well(self) -> None:
        """Wait until every service answers."""
        waiting = embedded(self.settings)
        wait_for("all services answer", lambda: all(service.healthy() for service in waiting))

    def evidence(self) -> str:
        """The first things that a person would look at: the ledger, the ranks, the last lines of each log."""
        jobs = [job for job in self.ledger.jobs() if job.state not in OVER]
        return "\n".join(
            [
                *(f"machine {each}" for each in self.ledger.machines()),
                *(f"incident {each}" for each in self.ledger.incidents()[-5:]),
                *(f"job {each}" for each in jobs),
                *(f"agent {each}: {self.agent(each)}" for job in jobs for each in job.machines),
                *(line for log in sorted(log_dir(self.home).glob("*.log")) for line in _last(log)),
            ]
        )

    def counts(self) -> dict[str, Any]:
        """Counts that must not change when nothing is to be done."""
        jobs = self.ledger.jobs()
        return {
            "incidents": len(self.ledger.incidents()),
            "epochs": {job.name: len(self.epochs(job.name)) for job in jobs},
            "states": {job.name: job.state for job in jobs},
            "pids": {job.name: self.pids(job.name) for job in jobs if job.state not in OVER},
            "active": {machine.name for machine in self.ledger.machines(state=MachineState.ACTIVE)},
            "evicted": self.evicted(),
        }


def _last(log: Path, lines: int = 60) -> list[str]:
    return [f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-lines:]]
