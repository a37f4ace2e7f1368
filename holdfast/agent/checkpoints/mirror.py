"""Shards of a machine that is to be left, sent to the machine that takes over, each time that ranks save."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from holdfast.agent.checkpoints import shard_client
from holdfast.agent.ranks.run import Run
from holdfast.errors import HoldfastError
from holdfast.models.agent import Mirror
from holdfast.secret import Keys, keys
from holdfast.storage.checkpoints.save.buffers import read_header
from holdfast.tls import PLAIN, Tls

_log = logging.getLogger(__name__)
_THREADS = 2
_QUIET_S = 1.0


@dataclass
class _Order:
    epoch: int
    address: str
    until: float
    quiet_until: float = 0.0


class Mirrors:
    """Beside the peer's copies, which go first: training never waits for these. Only the newest save waits."""

    def __init__(self, secret: str | Keys, tls: Tls = PLAIN) -> None:
        self._secret = keys(secret)
        self._tls = tls
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="mirror")
        self._lock = threading.Lock()
        self._orders: dict[str, _Order] = {}
        self._waiting: dict[tuple[str, int], Path | None] = {}
        self._asked: dict[tuple[str, int], tuple[int, int, int, str]] = {}

    def order(self, command: Mirror) -> None:
        """Begin, or go on for longer, or turn to another machine."""
        until = time.monotonic() + command.keep_s
        self._orders[command.job] = _Order(command.epoch, command.address, until)

    def saved(self, run: Run, rank: int, step: int, path: Path) -> None:
        """Have a complete shard sent, if its job is mirrored. Called on the event loop; returns at once.

        May be repeated for one save. A step that is saved a second time is sent again: only saves of one number belong
        together.
        """
        if (order := self._orders.get(run.start.job)) is None:
            return
        if order.epoch != run.start.epoch or time.monotonic() > order.until:
            del self._orders[run.start.job]
            return
        header = read_header(path)
        number = header.number if header is not None else 0
        key, what = (run.start.job, rank), (order.epoch, step, number, order.address)
        if self._asked.get(key) == what:
            return
        self._asked[key] = what
        with self._lock:
            busy = key in self._waiting
            self._waiting[key] = path
        if not busy:
            self._pool.submit(self._work, key, order, run.start.copies.peer)

    def close(self) -> None:
        """Start no more transfers."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, key: tuple[str, int], order: _Order, buffers: int) -> None:
        while True:
            with self._lock:
                path = self._waiting.get(key)
                if path is None:
                    self._waiting.pop(key, None)
                    return
                self._waiting[key] = None
            if time.monotonic() < order.quiet_until:
                continue
            try:
                shard_client.push(order.address, self._secret.current, path, self._tls, peer_buffers=buffers)
            except HoldfastError as error:
                # The state comes from the peer then; it takes a little longer.
                _log.warning("shard %s is not on %s: %s", path.name, order.address, error)
                order.quiet_until = time.monotonic() + _QUIET_S
            except Exception:
                _log.exception("shard %s is not on %s", path.name, order.address)
                order.quiet_until = time.monotonic() + _QUIET_S
