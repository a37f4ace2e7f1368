"""The agent: one per machine. Puts the parts together and lives until stopped or replaced."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import uvicorn

from holdfast.agent import server, wire
from holdfast.agent.bench import Bench
from holdfast.agent.carrier import Carrier
from holdfast.agent.forkserver import ForkServer
from holdfast.agent.inspection import Inspector
from holdfast.agent.jobs import Jobs
from holdfast.agent.memory import Memory
from holdfast.agent.metrics import Metrics
from holdfast.agent.replication import Replicator
from holdfast.agent.reporter import Reporter
from holdfast.agent.run import Run
from holdfast.agent.shard_port import ShardPort
from holdfast.agent.supply import Supply
from holdfast.agent.uploads import Uploads
from holdfast.agent.watch import RunEvents, Watch
from holdfast.errors import StaleError
from holdfast.models import agent as messages
from holdfast.models.alert import Alert, Finding
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.paths import ENV_MACHINE_DIR, machine_dir, shm_dir
from holdfast.settings import Settings

_log = logging.getLogger(__name__)

EXIT_STALE = 3
ENV_ARM_FAULTS = "HOLDFAST_ARM_FAULTS"
_SELF_CHECK_S = 10.0


class _Http(uvicorn.Server):
    """Leaves signals to the agent, which has ranks to stop; uvicorn would raise them again when it ends."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install nothing."""
        yield


class Agent:
    """Commands arrive through :mod:`holdfast.agent.server`; :meth:`run` is the process's life."""

    def __init__(self, machine: str, home: Path, settings: Settings, secret: str, host: str) -> None:
        self.machine = machine
        self.incarnation = uuid.uuid4().hex[:12]
        self.secret = secret
        self.metrics = Metrics()
        self.folder = machine_dir(home, machine)
        self.memory = Memory(machine, shm_dir(home, machine))
        self._prepare_process()
        self.forks = ForkServer([name.strip() for name in settings.preload.split(",") if name.strip()])
        self._settings = settings
        self._host = host
        self._socket = socket.create_server((host, 0), backlog=256)
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        self._port = ShardPort(self.memory, secret, host)
        self._reporter = Reporter(settings.gateway, secret, self.metrics)
        self._carrier = Carrier(self.forks, settings)
        self._bench = Bench(self.forks.fork)
        self._replicator = Replicator(secret, self.metrics)
        uploads = Uploads(self._carrier, self.memory, self.folder / "ckpt", self.metrics, self._uploaded)
        self._watch = Watch(
            machine=machine,
            incarnation=self.incarnation,
            report=self._reporter.report,
            replicator=self._replicator,
            uploads=uploads,
            metrics=self.metrics,
        )
        self._supply = Supply(self._carrier, self.memory, self.folder, secret)
        self.jobs = Jobs(
            forks=self.forks,
            memory=self.memory,
            supply=self._supply,
            metrics=self.metrics,
            host=host,
            make_run=lambda start: Run(start, machine, self.folder, self.memory),
            events=lambda run: RunEvents(self._watch, run),
            on_exit=self._watch.exited,
        )
        self._inspector = Inspector(machine, home, settings, self._emit)

    async def run(self) -> int:
        """Serve until a signal (status 0) or until this incarnation is stale (status 3)."""
        config = uvicorn.Config(
            server.build(self), log_config=None, access_log=False, lifespan="off", http="h11", ws="none"
        )
        http = _Http(config)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, setattr, http, "should_exit", True)
        self._write_card()
        serving = asyncio.create_task(http.serve(sockets=[self._socket]))
        background = [asyncio.create_task(self._speak()), asyncio.create_task(self._inspector.run())]
        for task in background:
            # Detectors and reporting never end by themselves: if one does, so does the agent.
            task.add_done_callback(lambda _: setattr(http, "should_exit", True))
        try:
            await serving
            return self._status(background)
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self.jobs.stop_all()
            self._carrier.close()
            self._replicator.close()
            self._port.close()
            await self._reporter.close()

    async def fence(self, command: messages.Fence) -> list[int]:
        """Stop ranks up to an epoch, and tell the steps that they did since the last heartbeat."""
        self._check(command.incarnation)
        run = self.jobs.runs.get(command.job)
        stopped = await self.jobs.fence(command)
        fenced = run is not None and run.start.replay is None and run.start.epoch <= command.epoch
        if run is not None and fenced and (marks := run.snapshot().marks):
            self._watch.report(run, started=marks)
        return stopped

    async def open_rendezvous(self, command: messages.OpenRendezvous) -> messages.Rendezvous:
        """Host the store of an epoch."""
        self._check(command.incarnation)
        return await self.jobs.open_rendezvous(command)

    async def start(self, command: messages.Start) -> list[messages.RankState]:
        """Start this machine's ranks."""
        self._check(command.incarnation)
        return await self.jobs.start(command)

    async def hold(self, command: messages.Hold) -> None:
        """Hold ranks at a boundary, or let them go."""
        self._check(command.incarnation)
        self.jobs.hold(command)

    async def fetch_shard(self, command: messages.FetchShard) -> None:
        """Pull a shard into this machine's memory."""
        self._check(command.incarnation)
        self.jobs.refuse_stale(command.job, command.epoch)
        await self._supply.shard(command)

    async def prepare_code(self, command: messages.PrepareCode) -> None:
        """Have a code version checked out."""
        self._check(command.incarnation)
        await self._supply.code(command.job, command.version)

    async def diagnose(self, command: messages.Diagnose) -> list[Finding]:
        """Run one stop-time check."""
        self._check(command.incarnation)
        from holdfast.agent import diagnostics  # noqa: PLC0415  (seldom needed)

        return await diagnostics.run_check(
            command, self.forks.fork, machine=self.machine, inspector=self._inspector, bench=self._bench
        )

    async def stacks(self, job: str, epoch: int) -> list[messages.StackDump]:
        """Stacks of the rank processes of a job and of their children."""
        from holdfast.agent import stacks  # noqa: PLC0415  (seldom needed)

        run = self.jobs.run(job, epoch)
        alive = {rank: process.pid for rank, process in run.processes.items() if not process.gone.done()}
        return await stacks.dump(self.machine, alive)

    async def state(self) -> messages.AgentState:
        """Everything the agent knows."""
        return messages.AgentState(
            machine=self.machine,
            incarnation=self.incarnation,
            jobs=self._snapshots(),
            shards=await asyncio.to_thread(self.memory.shards),
            fences=dict(self.jobs.fences),
            warm=self.forks.warm,
            info={"pid": os.getpid(), "logs": str(self.folder / "logs")},
        )

    def render_metrics(self) -> bytes:
        """Prometheus text, with the step of each rank as of now."""
        for run in self.jobs.runs.values():
            for rank, row in (run.board.rows if run.board else {}).items():
                self.metrics.steps.labels(run.start.job, rank).set(row.step)
        return self.metrics.render()

    def _prepare_process(self) -> None:
        """What the fork server, and so every process of the machine, inherits."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.memory.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.environ[ENV_MACHINE_DIR] = str(self.folder)
        # Same on all machines, so that sets of strings iterate alike on every rank.
        os.environ.setdefault("PYTHONHASHSEED", "0")
        if os.environ.get(ENV_ARM_FAULTS) == "1":
            os.environ[wire.ENV_FAULTS] = str(self.folder / "faults")

    def _write_card(self) -> None:
        me = psutil.Process()
        card = {
            "pid": me.pid,
            "create_time": me.create_time(),
            "address": self.address,
            "data_address": self._port.address,
            "incarnation": self.incarnation,
        }
        path = self.folder / "agent.json"
        path.with_suffix(".new").write_text(json.dumps(card))
        path.with_suffix(".new").rename(path)

    async def _speak(self) -> None:
        """Warm up, check the machine, register, then report for ever."""
        await self.forks.warm_up()
        await self._carrier.start()
        message = messages.Register(
            machine=self.machine,
            incarnation=self.incarnation,
            address=self.address,
            data_address=self._port.address,
            pid=os.getpid(),
            checks=tuple(await self._self_check()),
        )
        await self._reporter.run(message, self._settings.heartbeat_s, self._heartbeat, self._delivered)

    async def _self_check(self) -> list[Finding]:
        try:
            return await asyncio.wait_for(self._inspector.inspect(), _SELF_CHECK_S)
        except TimeoutError:
            detail = f"inspection not done within {_SELF_CHECK_S:.0f} s"
            return [Finding(check="inspect", machine=self.machine, ok=False, detail=detail)]

    def _snapshots(self) -> tuple[messages.JobOnMachine, ...]:
        return tuple(run.snapshot() for run in self.jobs.runs.values() if run.start.replay is None)

    def _heartbeat(self) -> messages.Heartbeat:
        return messages.Heartbeat(
            machine=self.machine, incarnation=self.incarnation, at=time.time(), jobs=self._snapshots()
        )

    def _delivered(self, beat: messages.Heartbeat) -> None:
        for sent in beat.jobs:
            run = self.jobs.runs.get(sent.job)
            if run is not None and run.board is not None and sent.marks and run.start.epoch == sent.epoch:
                run.board.take_marks_until(sent.marks[-1].at)

    def _emit(self, alert: Alert) -> None:
        """Report what a detector saw, with the job that it hits, if one runs here."""
        running = [run.start for run in self.jobs.runs.values() if run.start.replay is None and run.running]
        known: dict[str, object] = {"incarnation": alert.incarnation or self.incarnation}
        if alert.job is None and running:
            known |= {"job": running[0].job, "epoch": running[0].epoch}
        self._report(alerts=(alert.model_copy(update=known),))

    def _uploaded(self, remote: RemoteCheckpoint) -> None:
        self._report(job=remote.job, epoch=remote.epoch, checkpoints=(remote,))

    def _report(self, **content: object) -> None:
        fields = {"machine": self.machine, "incarnation": self.incarnation, **content}
        self._reporter.report(messages.Report.model_validate(fields))

    def _check(self, incarnation: str) -> None:
        if incarnation != self.incarnation:
            raise StaleError(
                f"machine {self.machine}: command for incarnation {incarnation!r}, this is {self.incarnation!r}"
            )

    def _status(self, background: list[asyncio.Task[None]]) -> int:
        for task in background:
            error = task.exception() if task.done() and not task.cancelled() else None
            if isinstance(error, StaleError):
                _log.error("the gateway gave this machine up (%s): stopping its ranks and leaving", error)
                return EXIT_STALE
            if error is not None:
                raise error
        return 0
