"""Copies of fresh shards to the peer machine, while the ranks compute the next step."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.agent.checkpoints import shard_client
from holdfast.agent.metrics import Metrics
from holdfast.agent.ranks.run import Run
from holdfast.errors import HoldfastError, UnavailableError
from holdfast.models.agent import Start
from holdfast.secret import Keys, keys
from holdfast.storage.checkpoints.save import buffers
from holdfast.tls import PLAIN, Tls

_log = logging.getLogger(__name__)

_THREADS = 4
_QUIET_S = 1.0  # after a failure the ranks are not held up again for so long


class Replicator:
    """Sends each saved shard to the run's peer. Per rank one transfer at a time; only the newest waits."""

    def __init__(self, secret: str | Keys, metrics: Metrics, tls: Tls = PLAIN) -> None:
        self._secret = keys(secret)
        self._tls = tls
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="replicate")
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, int], tuple[int, Path] | None] = {}
        self._quiet_until: dict[str, float] = {}
        self._described: dict[
            str, tuple[str, int, str]
        ] = {}  # job -> peer, epoch, and plan whose .metadata it has

    def saved(self, run: Run, rank: int, step: int, path: Path) -> None:
        """Have a complete shard copied. Called on the event loop; returns at once. May be repeated."""
        key = (run.name, rank)
        if run.controls[rank].replicated_step >= step:
            return
        with self._lock:
            busy = key in self._waiting
            self._waiting[key] = (step, path)
        if not busy:
            self._pool.submit(self._work, run, rank)

    @property
    def busy(self) -> bool:
        """Whether a transfer is under way or waiting."""
        with self._lock:
            return bool(self._waiting)

    def close(self) -> None:
        """Start no more transfers."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, run: Run, rank: int) -> None:
        key = (run.name, rank)
        while True:
            with self._lock:
                newest = self._waiting.get(key)
                if newest is None:
                    del self._waiting[key]
                    return
                self._waiting[key] = None
            step, path = newest
            if run.controls[rank].replicated_step >= step:
                continue  # it was asked for twice
            if not self._send(run.start, path):
                continue  # the rank's thread waits a bounded time only
            with self._lock:
                again = self._waiting.get(key)
            if again is not None and again[0] == step and again[1] != path:
                continue  # the step was saved a second time: that save is still to be sent
            if run.board is not None:
                run.board.rows[rank].replicated_step = step
            run.controls[rank].replicated_step = step

    def _send(self, start: Start, path: Path) -> bool:
        peer = start.peer
        if time.monotonic() < self._quiet_until.get(peer, 0.0):
            self._metrics.replications.labels("skipped").inc()
            return False
        begun = time.perf_counter()
        try:
            header = shard_client.push(
                peer, self._secret.current, path, self._tls, peer_buffers=start.copies.peer
            )
            if header.rank == 0:
                self._describe(peer, path, header)
        except HoldfastError as error:
            _log.warning("copy of %s to %s failed: %s", path.name, peer, error)
            if isinstance(error, UnavailableError):
                self._quiet_until[peer] = time.monotonic() + _QUIET_S
            self._metrics.replications.labels("failed").inc()
            return False
        except Exception:
            _log.exception("copy of %s to %s failed", path.name, peer)
            self._metrics.replications.labels("failed").inc()
            return False
        self._metrics.replications.labels("ok").inc()
        self._metrics.replication_seconds.observe(time.perf_counter() - begun)
        return True

    def _describe(self, peer: str, path: Path, header: buffers.ShardHeader) -> None:
        """Send the ``.metadata`` once per plan, epoch and peer: copies need it to complete a checkpoint."""
        if self._described.get(header.job) == (peer, header.epoch, header.plan):
            return
        metadata = buffers.metadata_path(path.parent, header.plan)
        try:
            shard_client.push_metadata(
                peer, self._secret.current, header.job, header.plan, metadata, tls=self._tls
            )
        except (HoldfastError, OSError) as error:
            _log.warning("%s is not on the peer: %s", metadata.name, error)
            return
        self._described[header.job] = (peer, header.epoch, header.plan)
