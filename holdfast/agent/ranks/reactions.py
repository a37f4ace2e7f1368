"""Reactions to what ranks do: alerts and facts to the gateway, copies to the peer, uploads."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.agent.checkpoints.comparisons import Comparisons
from holdfast.agent.checkpoints.disk import DiskTier
from holdfast.agent.checkpoints.mirror import Mirrors
from holdfast.agent.checkpoints.prover import Prover
from holdfast.agent.checkpoints.rehearsals import Rehearsals
from holdfast.agent.checkpoints.replication import Replicator
from holdfast.agent.checkpoints.setbacks import Setbacks
from holdfast.agent.checkpoints.strays import Strays
from holdfast.agent.checkpoints.uploads import Uploads
from holdfast.agent.metrics import Metrics
from holdfast.agent.ranks import exits
from holdfast.agent.ranks.processes import Watched
from holdfast.agent.ranks.run import Run
from holdfast.models.agent import Report, StepMark
from holdfast.models.alert import Alert, AlertKind
from holdfast.models.rehearsal import Rehearsal
from holdfast.models.replica import StateDigests
from holdfast.models.setback import Place
from holdfast.policies.classify.roots import WAITED
from holdfast.policies.detect.jumps import Jump

_log = logging.getLogger(__name__)

_QUIET_S = 30.0  # between two lines about saves that failed


class Watch:
    """Shared by all runs of an agent. Replays are watched without reports: the caller that ordered them asks."""

    def __init__(
        self,
        *,
        machine: str,
        incarnation: str,
        report: Callable[[Report], None],
        replicator: Replicator,
        uploads: Uploads,
        disk: DiskTier,
        metrics: Metrics,
        prover: Prover,
        setbacks: Setbacks | None = None,
        mirrors: Mirrors | None = None,
        compare_every: int = 0,
        strays: Strays | None = None,
    ) -> None:
        self.machine = machine
        self.incarnation = incarnation
        self.send = report
        self.replicator = replicator
        self.uploads = uploads
        self.disk = disk
        self.metrics = metrics
        self.setbacks = setbacks or Setbacks()
        self.mirrors = mirrors
        self.rehearsals = Rehearsals(prover, self.unrestorable)
        self.comparisons = Comparisons(prover, self.holds, metrics, compare_every)
        self.strays = strays
        self.look: Callable[[], None] = lambda: None
        """Have the machine's detectors report at once what may explain a rank's end."""

    def save_fields(self, run: Run) -> dict[str, Any]:
        """Return the heartbeats' fields on a run's saves."""
        return {
            "rehearsed": self.rehearsals.summary(run),
            "setbacks": self.setbacks.summaries(run.start.job, run.start.epoch),
        }

    def unrestorable(self, run: Run, found: Rehearsal) -> None:
        """Report that a rank's save cannot be restored."""
        assert found.proof is not None
        evidence = {
            "step": found.step,
            "tier": found.tier.value,
            "problems": [str(each) for each in found.proof.problems],
            "detail": found.result,
        }
        self.alert(run, AlertKind.UNRESTORABLE, found.rank or 0, evidence)

    def holds(self, run: Run, found: StateDigests) -> None:
        """Report digests of what ranks saved, to be compared with those of their replicas."""
        for part in found.parts():
            self.report(run, holds=(part,))

    def exited(self, run: Run, process: Watched) -> None:
        """Handle a rank that ended by itself."""
        if run.board is not None:
            run.board.drain()  # its last words may have arrived just before
        how = "done" if process.exit_code == 0 else exits.signal_name(process.exit_code) or "error"
        self.metrics.exits.labels(run.start.job, how).inc()
        _log.info("job %s epoch %d rank %d: %s", run.start.job, run.start.epoch, process.rank, how)
        if run.start.replay is not None:
            return
        if process.exit_code == 0:
            self.report(run, done=(process.rank,))
            return
        self.look()  # the kernel's kill is known before the exit that it explains
        failed = run.board.rows[process.rank].failed if run.board else None
        found = exits.evidence(process.exit_code, failed, run.log_tail(process.rank), run.code)
        if run.board and (row := run.board.rows[process.rank]).steps_done:
            found["step"] = row.step
        self.alert(run, AlertKind.RANK_EXIT, process.rank, found)

    def lost(self, run: Run, process: Watched) -> None:
        """Report a process that was to outlive ``run`` and was ended, by none of us, before it began the next epoch."""
        how = exits.signal_name(process.exit_code) or "error"
        self.metrics.exits.labels(run.start.job, how).inc()
        _log.info("job %s epoch %d rank %d: %s, kept", run.start.job, run.start.epoch, process.rank, how)
        self.look()
        # Its log is from before: it may speak of the peer that it lost.
        found = exits.evidence(process.exit_code, None, "") | {WAITED: True}
        self.alert(run, AlertKind.RANK_EXIT, process.rank, found)

    def alert(self, run: Run, kind: AlertKind, rank: int, evidence: dict[str, Any]) -> None:
        """Report one alert about a rank."""
        alert = Alert(
            kind=kind,
            job=run.start.job,
            machine=self.machine,
            rank=rank,
            epoch=run.start.epoch,
            incarnation=self.incarnation,
            at=time.time(),
            evidence=evidence,
        )
        self.report(run, alerts=(alert,))

    def report(self, run: Run, **content: Any) -> None:
        """Report something about a run."""
        self.send(
            Report(
                machine=self.machine,
                incarnation=self.incarnation,
                job=run.start.job,
                epoch=run.start.epoch,
                **content,
            )
        )


class RunEvents:
    """The :class:`~holdfast.agent.ranks.rank_table.RankEvents` of one run."""

    def __init__(self, watch: Watch, run: Run) -> None:
        self._watch = watch
        self._run = run
        self._silent = run.start.replay is not None
        self._logged_at = -_QUIET_S

    def first_step(self, mark: StepMark) -> None:
        """Report to the gateway that the epoch makes progress."""
        if not self._silent:
            self._watch.report(self._run, started=(mark,))

    def not_finite(self, rank: int, step: int, metric: str, value: str) -> None:
        """Report an alert."""
        if not self._silent:
            found = {"step": step, "metric": metric, "value": value}
            self._watch.alert(self._run, AlertKind.NON_FINITE, rank, found)

    def jumped(self, rank: int, step: int, metric: str, jump: Jump) -> None:
        """Report an alert."""
        if not self._silent:
            self._watch.alert(
                self._run, AlertKind.METRIC_JUMP, rank, {"step": step, "metric": metric, **jump.model_dump()}
            )

    def saved(self, rank: int, step: int, path: Path) -> None:
        """Copy the shard to the peer; of a single buffer not before all ranks have theirs."""
        if self._run.start.copies.own > 1:
            self.kept(rank, step, path)

    def kept(self, rank: int, step: int, path: Path) -> None:
        """Copy the shard to the peer, if it lacks it."""
        if not self._silent and self._run.start.peer:
            self._watch.replicator.saved(self._run, rank, step, path)
        if not self._silent and self._watch.mirrors is not None:
            self._watch.mirrors.saved(self._run, rank, step, path)

    def common(self, rank: int, step: int, path: Path, *, since: int) -> None:
        """Handle a save that all ranks have.

        Copy the shard to the object store and the disk, if its step is due, prove it, and compare it with replicas.
        """
        if self._run.start.copies.own == 1:
            self.kept(rank, step, path)
        if not self._silent:
            start = self._run.start
            self._watch.setbacks.went_well(start.job, start.epoch, Place.SAVE, rank)
            self._watch.uploads.saved(self._run, rank, step, path, since=since)
            self._watch.disk.saved(self._run, rank, step, path, since=since)
            self._watch.rehearsals.saved(self._run, rank, path)
            self._watch.comparisons.saved(self._run, rank, step, path)
            if self._watch.strays:
                self._watch.strays.common(self._run, time.monotonic())

    def save_failed(self, rank: int, step: int, reason: str) -> None:
        """Count it, and report it: in heartbeats, and in the log now and then."""
        job = self._run.start.job
        self._watch.metrics.saves_failed.labels(job).inc()
        if not self._silent:
            self._watch.setbacks.failed(
                job, self._run.start.epoch, Place.SAVE, rank, f"rank {rank} at step {step}: {reason}"
            )
        now = time.monotonic()
        if now - self._logged_at >= _QUIET_S:
            self._logged_at = now
            _log.warning("job %s rank %d: step %d is not saved: %s", job, rank, step, reason)

    def skipped(self, rank: int, step: int) -> None:
        """Count it."""
        self._watch.metrics.saves_skipped.labels(self._run.start.job).inc()

    def lost_peer(self, rank: int, message: Mapping[str, Any]) -> None:
        """Report the alert as if its process had ended: a cascading failure, which leads to the one that is gone."""
        if not self._silent:
            found = exits.evidence(1, message, self._run.log_tail(rank))
            self._watch.alert(self._run, AlertKind.RANK_EXIT, rank, found | {"kept": True})

    def restored(self, rank: int, cost: Mapping[str, Any]) -> None:
        """Record the cost, by the state's source."""
        metrics, tier = self._watch.metrics, str(cost["tier"])
        metrics.restore_seconds.labels(tier).observe(float(cost["s"]))
        metrics.restore_nbytes.labels(tier).inc(float(cost.get("read_nbytes") or 0))
