"""The agent: one per machine. Connects its parts and runs until stopped or replaced."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import signal
import time
from pathlib import Path

import psutil
import uvicorn

from holdfast import private, tls
from holdfast.agent import server, wire
from holdfast.agent.checkpoints.disk import DiskTier
from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.checkpoints.mirror import Mirrors
from holdfast.agent.checkpoints.prover import Prover
from holdfast.agent.checkpoints.replication import Replicator
from holdfast.agent.checkpoints.setbacks import Setbacks
from holdfast.agent.checkpoints.shard_port import ShardPort
from holdfast.agent.checkpoints.strays import Strays
from holdfast.agent.checkpoints.transfer_process import TransferProcess
from holdfast.agent.checkpoints.uploads import UploadLimits, Uploads
from holdfast.agent.commands import Commands
from holdfast.agent.cores import cores
from holdfast.agent.diagnostics.warm_checks import Bench
from holdfast.agent.inspection import Inspector
from holdfast.agent.inspection.detectors import detectors
from holdfast.agent.inspection.roots import Roots
from holdfast.agent.metrics import Metrics
from holdfast.agent.quiet_http import QuietHttp
from holdfast.agent.ranks import scratch
from holdfast.agent.ranks.epoch_groups import EpochGroups, parent_of_groups
from holdfast.agent.ranks.forkserver import ForkServer, GivenForkServer
from holdfast.agent.ranks.jobs import RunningJobs
from holdfast.agent.ranks.rank_logs import RankLogs
from holdfast.agent.ranks.reactions import RunEvents, Watch
from holdfast.agent.ranks.remains import Remains
from holdfast.agent.ranks.run import Run
from holdfast.agent.ranks.scratch import Scratch
from holdfast.agent.ranks.staging import Staging
from holdfast.agent.roles.files import RoleFiles
from holdfast.agent.roles.replica import Means
from holdfast.agent.roles.supervisor import Supervisor
from holdfast.agent.uplink.contact import Standing
from holdfast.agent.uplink.lease_watch import LeaseWatch
from holdfast.agent.uplink.parts import HeartbeatParts
from holdfast.agent.uplink.reporter import Reporter
from holdfast.errors import StaleError, UnavailableError
from holdfast.guarded_http import guarded
from holdfast.listen import KEEP_ALIVE_S, authority, listen
from holdfast.models import agent as messages
from holdfast.models import incarnation, location
from holdfast.models.alert import Alert, AlertKind
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.paths import ENV_MACHINE_DIR, SHM, machine_dir, shm_dir
from holdfast.plugins.policy import site_policy
from holdfast.policies.detect.silence import CUT_OFF
from holdfast.secret import Keys, keys
from holdfast.settings import Settings
from holdfast.storage import objects

_log = logging.getLogger(__name__)

EXIT_STALE = 3
ENV_ARM_FAULTS = "HOLDFAST_ARM_FAULTS"
# Per machine, until a job states how many it wants.
_RANKS = 2


class Agent(Commands):
    """Commands arrive through :mod:`holdfast.agent.server`; :meth:`run` is the process's life."""

    def __init__(self, machine: str, home: Path, settings: Settings, secret: str | Keys, host: str) -> None:
        self.machine = machine
        given = GivenForkServer.taken()
        self.incarnation = given.incarnation if given else incarnation.fresh()
        self.secret = secret = keys(secret)
        self._tls = tls.of(settings)
        self.metrics = Metrics()
        self._home = home
        policy = site_policy(settings.policy_file).detect
        self.folder = machine_dir(home, machine)
        shm, nvme = shm_dir(home, machine), settings.first_tier_dir
        for place in (shm.parent, shm, self.folder):
            private.folder(place)
        self.memory = Memory(
            machine, shm, self.folder / "ckpt", None if nvme is None else nvme / shm.relative_to(SHM)
        )
        self._prepare_process()
        self.forks = ForkServer(settings.preload_modules, given)
        groups = EpochGroups(self.folder, parent_of_groups(os.environ))
        self._remains = Remains(
            self.memory.root / "control", self.folder, self.incarnation, self.forks, groups
        )
        self._scratch = Scratch(self.folder / "tmp", scratch.shared())
        self._settings = settings
        self._host = host
        self._socket = listen(host, 0, backlog=256)
        self.address = authority(host, self._socket.getsockname()[1])
        self._port = ShardPort(self.memory, secret, host, self._tls, self.metrics.unauthorized.inc)
        self.standing = Standing()
        self._cores = cores()
        self._parts = HeartbeatParts()
        self._reporter = Reporter(
            ",".join(settings.gateways),
            secret,
            self.metrics,
            tls=self._tls,
            standing=self.standing,
            on_answer=self._on_answer,
        )
        self._carrier = TransferProcess(self.forks, settings)
        self._bench = Bench(self.forks.run, self.memory.root)
        self._ranks = _RANKS
        self._replicator = Replicator(secret, self.metrics, self._tls)
        self._mirrors = Mirrors(secret, self._tls)
        limits = UploadLimits(
            settings.s3_upload_s, settings.s3_parts_s, settings.s3_object_mib << 20, settings.s3_tidy_s
        )
        setbacks = Setbacks()
        self._uploads = Uploads(
            self._carrier,
            self.memory,
            limits,
            self.metrics,
            done=self._uploaded,
            dropped=self._dropped,
            setbacks=setbacks,
        )
        self._prover = Prover(self.forks, self.memory, settings, self.metrics, machine)
        self._watch = Watch(
            machine=machine,
            incarnation=self.incarnation,
            report=self._reporter.report,
            replicator=self._replicator,
            mirrors=self._mirrors,
            uploads=self._uploads,
            disk=DiskTier(self.memory, settings.disk_mib << 20, self.metrics, setbacks),
            metrics=self.metrics,
            prover=self._prover,
            setbacks=setbacks,
            compare_every=policy.replicas.every_steps,
            strays=Strays(self.memory),
        )
        self._supply = Staging(
            self._carrier,
            self.memory,
            self.folder,
            secret,
            functools.partial(objects.arguments, settings),
            tls=self._tls,
        )
        files = RoleFiles(self.folder, host)
        make_run = functools.partial(
            Run,
            machine=machine,
            folder=self.folder,
            memory=self.memory,
            limits=policy.metrics,
            remains=self._remains,
            scratch=self._scratch,
            role_of=files.environment,
        )
        self.jobs = RunningJobs(
            forks=self.forks,
            memory=self.memory,
            supply=self._supply,
            metrics=self.metrics,
            host=host,
            make_run=make_run,
            make_ahead=functools.partial(make_run, ahead=True),
            events=lambda run: RunEvents(self._watch, run),
            on_exit=self._watch.exited,
            on_lost=self._watch.lost,
        )
        means = Means(
            machine,
            self.folder,
            self.memory.root / "control",
            self.forks,
            self._remains,
            self._scratch,
            files,
            self._reporter.hurry,
        )
        self.roles = Supervisor(means, self._supply.code, self.jobs.live)
        self.jobs.replicas_here = lambda: self.roles.present
        roots = Roots.of(home, machine, settings)
        looking, self._vitals = detectors(machine, home, settings, policy, roots)
        self._inspector = Inspector(machine, looking, policy.intervals, self._emit)
        self._watch.look = self._inspector.look_at_exit
        self._rank_logs = RankLogs(self.jobs.runs, self._watch, policy.intervals.rank_log_s)
        self._lease = LeaseWatch(
            self.standing,
            secret,
            probe_gateways=lambda patience_s: self._reporter.probe_gateways(self._heartbeat(), patience_s),
            runs=lambda: self.roles.running or any(run.running for run in self.jobs.runs.values()),
            stop=self._stop_cut_off,
            tls=self._tls,
        )

    async def run(self) -> int:
        """Serve until a signal (status 0) or until this incarnation is stale (status 3)."""
        config = uvicorn.Config(
            server.build(self),
            log_config=None,
            access_log=False,
            date_header=False,  # uvicorn's loop would refresh it
            lifespan="off",
            http=guarded(),
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        config.load()
        config.ssl = self._tls.server()
        http = QuietHttp(config)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, http.end)
        # As for other daemons: it must not end ranks. Not ignored, which what is started here would inherit.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _log.info, "SIGHUP changes nothing here")
        self._write_card()
        serving = asyncio.create_task(http.serve(sockets=[self._socket]))
        watching = (self._speak(), self._inspector.run(), self._rank_logs.run(), self._lease.run())
        background = [asyncio.create_task(each) for each in watching]
        for task in background:
            # Detectors and reporting never end by themselves: if one does, so does the agent.
            task.add_done_callback(lambda _: http.end())
        try:
            await serving
            return self._status(background)
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            self._watch.rehearsals.close()
            self._watch.comparisons.close()
            await asyncio.gather(self.jobs.stop_all(), self.roles.stop_all())
            await self._end_remains()
            self._carrier.close()
            self._replicator.close()
            self._mirrors.close()
            self._port.close()
            await self._reporter.close()

    async def _stop_cut_off(self, why: str) -> None:
        """End all ranks, refuse their epochs from now on, and report it when the gateway is back."""
        self.metrics.cut_off.inc()
        ranks = (self._end_cut_off(run, why) for run in list(self.jobs.runs.values()))
        await asyncio.gather(self.roles.stop_all(), *ranks)

    async def _end_cut_off(self, run: Run, why: str) -> None:
        start = run.start
        fence = messages.Fence(job=start.job, epoch=start.epoch, incarnation=self.incarnation)
        stopped = await self.jobs.fence(fence)
        if stopped and start.replay is None:
            found = {"error_type": CUT_OFF, "message": why, "cause": "network", "cascade": False}
            self._watch.alert(run, AlertKind.RANK_EXIT, stopped[0], found)

    def render_metrics(self) -> bytes:
        """Return Prometheus text, with the current step of each rank; those that have left are left out."""
        self.metrics.steps.clear()
        for run in self.jobs.runs.values():
            for rank, row in (run.board.rows if run.board else {}).items():
                self.metrics.steps.labels(run.start.job, rank).set(row.step)
        return self.metrics.render()

    def _prepare_process(self) -> None:
        """Set what the fork server, and so every process of the machine, inherits."""
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

    async def _end_remains(self) -> None:
        try:
            await self._remains.end_all()
        except UnavailableError as error:
            _log.error("%s", error)

    async def _clear(self) -> None:
        """End what an earlier agent left; if something cannot be ended, no ranks are started."""
        try:
            await self._remains.clear()
            await asyncio.to_thread(self._scratch.clear)
        except UnavailableError as error:
            _log.error("%s", error)

    async def _speak(self) -> None:
        """Clean up, warm up, check the machine, register, then report without end."""
        await self._clear()
        await self.forks.warm_up()
        await self._carrier.start()
        spares = asyncio.create_task(self.forks.keep_spares(self._spares_wanted))
        roles = asyncio.create_task(self.roles.run())
        message = messages.Register(
            machine=self.machine,
            incarnation=self.incarnation,
            address=self.address,
            data_address=self._port.address,
            pid=os.getpid(),
            checks=tuple(await self._inspector.self_check()),
            location=location.of_machine(self._settings.location, os.environ),
        )
        try:
            await self._reporter.run(message, self._settings.heartbeat_s, self._heartbeat, self._delivered)
        finally:
            spares.cancel()
            roles.cancel()

    def _heartbeat(self) -> messages.Heartbeat:
        return messages.Heartbeat(
            machine=self.machine,
            incarnation=self.incarnation,
            at=time.time(),
            jobs=tuple(self._parts.job(run, self._watch.save_fields) for run in self._training()),
            vitals=self._parts.build("GPUs and ports", self._vitals, lambda _: None),
            replicas=self._parts.build("replicas", self.roles.states, lambda last: last or ()),
            plan=self.roles.version,
            cores=self._cores,
            silence_s=self.standing.longest_s(),
        )

    def _on_answer(self, answer: messages.Heard) -> None:
        self.roles.take(answer.plan)

    def _delivered(self, beat: messages.Heartbeat) -> None:
        for sent in beat.jobs:
            run = self.jobs.runs.get(sent.job)
            times = [*(mark.at for mark in sent.marks[-1:]), *(one.at for one in sent.times[-1:])]
            if run is not None and run.board is not None and times and run.start.epoch == sent.epoch:
                run.board.delivered_until(max(times))

    def _emit(self, alert: Alert) -> None:
        """Report an alert of a detector, with the job that it affects, if one runs here."""
        running = [run.start for run in self.jobs.runs.values() if run.start.replay is None and run.running]
        known: dict[str, object] = {"incarnation": alert.incarnation or self.incarnation}
        if alert.job is None and running:
            # An alert that affects one epoch and then the next is two signals.
            known |= {
                "job": running[0].job,
                "epoch": running[0].epoch,
                "fingerprint": f"{alert.key}:e{running[0].epoch}",
            }
        self._report(alerts=(alert.model_copy(update=known),))

    def _uploaded(self, remote: RemoteCheckpoint) -> None:
        self._report(job=remote.job, epoch=remote.epoch, checkpoints=(remote,))

    def _dropped(self, job: str, keys: tuple[str, ...]) -> None:
        self._report(job=job, dropped=keys)

    def _report(self, **content: object) -> None:
        fields = {"machine": self.machine, "incarnation": self.incarnation, **content}
        self._reporter.report(messages.Report.model_validate(fields))

    def _status(self, background: list[asyncio.Task[None]]) -> int:
        for task in background:
            error = task.exception() if task.done() and not task.cancelled() else None
            if isinstance(error, StaleError):
                _log.error("the gateway gave up this machine (%s): it stops its ranks and leaves", error)
                return EXIT_STALE
            if error is not None:
                raise error
        return 0
