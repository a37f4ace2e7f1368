"""Messages of the ranks of one run: a datagram socket, and the state of each rank that follows from its messages."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from holdfast.agent.wire import whole_characters
from holdfast.models.agent import RankPhase, RankState, StepDigest, StepMark, StepTimes
from holdfast.models.base import MOST_STEPS
from holdfast.policies.classify import unloadable
from holdfast.policies.config.policy import Policy
from holdfast.policies.config.thresholds import MetricLimits
from holdfast.policies.detect.jumps import Jump, jump

_MAX_DATAGRAM = 256 * 1024
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors of a malformed datagram, which is dropped: the agent reads on, and the other ranks are heard."""
_HALF = (b"\\ud", b"\\uD")
"""Begins the escape of half a character, such as one of a name of a file that is not Unicode."""
_MAX_MARKS = 4096
_MAX_PHASES = 32
_EWMA = 0.2  # weight of the newest step's duration
_MAX_TIMES = 8
_MAX_PHASE_NAME = 40
_MAX_REASON = 1000


class RankEvents(Protocol):
    """Receiver of events that matter at once. Called on the event loop."""

    def first_step(self, mark: StepMark) -> None:
        """Handle that rank 0 completed its first step of the epoch."""
        ...

    def not_finite(self, rank: int, step: int, metric: str, value: str) -> None:
        """Handle a loss or gradient norm of a rank that is not finite (reported once per run)."""
        ...

    def jumped(self, rank: int, step: int, metric: str, jump: Jump) -> None:
        """Handle a jump of a rank's loss or gradient norm (reported once until it is back)."""
        ...

    def saved(self, rank: int, step: int, path: Path) -> None:
        """Handle a shard that is complete in shared memory."""
        ...

    def common(self, rank: int, step: int, path: Path, *, since: int) -> None:
        """Handle a save of a step that all ranks have; ``since``: the one before that they have, or began with."""
        ...

    def kept(self, rank: int, step: int, path: Path) -> None:
        """Handle a rank with a single buffer that waits for its peer to have that shard."""
        ...

    def save_failed(self, rank: int, step: int, reason: str) -> None:
        """Handle a failed save; training goes on."""
        ...

    def skipped(self, rank: int, step: int) -> None:
        """Handle a save that was left out, since the one before was not done."""
        ...

    def lost_peer(self, rank: int, message: Mapping[str, Any]) -> None:
        """Handle that a rank lost a peer and left its training function, and that its process waits."""
        ...

    def restored(self, rank: int, cost: Mapping[str, Any]) -> None:
        """Handle that a rank has its state; ``cost`` as in the message (:mod:`holdfast.agent.wire`)."""
        ...


@dataclass
class Metric:
    """One metric of one rank over its last steps."""

    values: deque[float]
    high: int = 0
    """Steps in a row that were a jump."""


@dataclass
class RankStatus:
    """The state of one rank, as it reported it."""

    rank: int
    step: int = 0
    steps_done: int = 0
    step_at: float = field(default_factory=time.time)
    activity: str = ""
    loss: float | None = None
    grad_norm: float | None = None
    step_s: float = 0.0
    paused: bool = False
    keeps: bool = False
    """Its process may be kept when this epoch is over."""
    leaving: bool = False
    """It is out of its training function, and gives up what belongs to the epoch."""
    left: bool = False
    """It has done that as well, since the epoch is over or a peer is gone."""
    joined: bool = False
    """Its process was kept, and is in this epoch."""
    spoke: bool = False
    replicated_step: int = 0
    shard_nbytes: int = 0
    """Size of its newest shard."""
    saved_step: int = 0
    saves: tuple[int, int] = (0, 1)
    """As :attr:`.RankState.saves_at` and :attr:`.RankState.saves_every`."""
    waits: bool = False
    """Whether it has come to its restore."""
    restored: dict[str, Any] | None = None
    """How it got its state, and what that cost."""
    failed: dict[str, Any] | None = None
    replayed: dict[str, Any] | None = None
    not_finite: str = ""
    phases: dict[str, float] = field(default_factory=dict)
    """Of the last step."""
    usual_phases: dict[str, float] = field(default_factory=dict)
    mfu: float | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)
    allows: frozenset[str] | None = None
    """Classes that its script allows in checkpoints; None: it did not report them."""

    @property
    def damaged(self) -> str:
        """Its report of a saved state that could not be loaded."""
        return unloadable.reason(self.failed)

    def state(self, pid: int, exit_code: int | None, cpu_s: float, letter: str, exited: bool) -> RankState:
        """Return this row with what the agent knows of the process."""
        running = RankPhase.RUNNING if self.steps_done else RankPhase.STARTING
        return RankState(
            rank=self.rank,
            pid=pid,
            phase=RankPhase.EXITED if exited else running,
            step=self.step,
            steps_done=self.steps_done,
            step_at=self.step_at,
            activity=self.activity,
            # JSON has no NaN; an alert reports that there was one.
            loss=_finite(self.loss),
            grad_norm=_finite(self.grad_norm),
            step_s=self.step_s,
            mfu=_finite(self.mfu),
            phases={name: round(seconds, 6) for name, seconds in self.usual_phases.items()},
            cpu_s=cpu_s,
            process_state=letter,
            exit_code=exit_code,
            saves_at=self.saves[0],
            saves_every=self.saves[1],
            paused=self.paused,
            kept=self.joined,
            keeps=self.keeps,
            reports=self.spoke,
            damaged=self.damaged,
        )


class RankTable:
    """Listens for the ranks of one run (job and epoch)."""

    def __init__(
        self,
        path: Path,
        epoch: int,
        ranks: Iterable[int],
        events: RankEvents,
        limits: MetricLimits | None = None,
    ) -> None:
        self.rows = {rank: RankStatus(rank) for rank in ranks}
        self.marks: deque[StepMark] = deque(maxlen=_MAX_MARKS)
        self.times: deque[StepTimes] = deque(maxlen=_MAX_TIMES)
        self.path = path
        self._epoch = epoch
        self._events = events
        self._limits = limits or Policy.load().detect.metrics
        self._lowest = min(self.rows)
        self.news = asyncio.Event()
        """Set when a rank made its first step of this epoch; the waiter clears it."""
        self._reported_not_finite = False
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(path))
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self.drain)

    def close(self) -> None:
        """Stop listening."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self.path.unlink(missing_ok=True)

    def drain(self) -> None:
        """Read everything that was sent so far; drop malformed datagrams."""
        while self._socket.fileno() >= 0:
            try:
                data = self._socket.recv(_MAX_DATAGRAM)
            except (BlockingIOError, InterruptedError):
                return
            with contextlib.suppress(*_MALFORMED):
                message = json.loads(data)
                half = any(escape in data for escape in _HALF)
                self._take(whole_characters(message) if half else message)

    def delivered_until(self, at: float) -> None:
        """Forget marks and times up to ``at``: the gateway has them."""
        while self.marks and self.marks[0].at <= at:
            self.marks.popleft()
        while self.times and self.times[0].at <= at:
            self.times.popleft()

    def _take(self, message: dict[str, Any]) -> None:
        if message["epoch"] != self._epoch:
            return
        row = self.rows[message["rank"]]
        row.spoke = True
        handler = getattr(self, f"_on_{message['t']}", None)
        if handler is not None:
            handler(row, message)

    def _on_step(self, row: RankStatus, message: dict[str, Any]) -> None:
        row.step, row.step_at = _step(message["step"]), _since(row.step_at, _time(message["at"]))
        row.steps_done += 1
        row.activity = ""
        row.paused = False  # the report that it was let go may be lost, and is sent once
        seconds = _finite(float(message.get("s") or 0.0)) or 0.0
        row.step_s = seconds if row.step_s == 0.0 else row.step_s + _EWMA * (seconds - row.step_s)
        row.phases = _phases(message.get("phases") or {})
        row.usual_phases = {
            name: _mean(row.usual_phases.get(name), spent) for name, spent in row.phases.items()
        }
        row.loss, row.grad_norm = _number(message.get("loss")), _number(message.get("grad_norm"))
        row.mfu = _number(message.get("mfu"))
        at, every = message.get("saves", (0, 1))
        row.saves = _step(at), max(1, _step(every))
        if row.rank == self._lowest:
            stall_s = min(seconds, row.phases.get("checkpoint", 0.0))
            mark = StepMark(step=row.step, at=row.step_at, s=max(0.0, seconds), stall_s=max(0.0, stall_s))
            self.times.append(StepTimes(step=row.step, at=row.step_at, s=mark.s, phases=row.phases))
            # Other ranks than 0 would report the same: a thousand at once, after a start of a large job.
            if row.rank == 0:
                self.marks.append(mark)
                if row.steps_done == 1:
                    self._events.first_step(mark)
        if row.steps_done == 1:
            self.news.set()
        for metric, value in (("loss", row.loss), ("grad_norm", row.grad_norm)):
            if value is not None and not math.isfinite(value):
                self._report_not_finite(row, metric, str(value))
            elif value is not None:
                self._judge(row, metric, value)

    def _judge(self, row: RankStatus, name: str, value: float) -> None:
        """Judge a value: one that stays high for some steps is a jump; one step alone is a bad batch."""
        limits = self._limits
        metric = row.metrics.setdefault(name, Metric(deque(maxlen=limits.history)))
        before = list(metric.values)[
            : len(metric.values) - metric.high
        ]  # high steps are not compared with each other
        found = jump(before, value, limits)
        metric.high = metric.high + 1 if found else 0
        if found and metric.high == limits.jump_steps:
            self._events.jumped(row.rank, row.step, name, found)
        metric.values.append(value)

    def _report_not_finite(self, row: RankStatus, metric: str, value: str) -> None:
        row.not_finite = row.not_finite or f"{metric} {value} at step {row.step}"
        if not self._reported_not_finite:
            self._reported_not_finite = True
            self._events.not_finite(row.rank, row.step, metric, value)

    def _on_activity(self, row: RankStatus, message: dict[str, Any]) -> None:
        row.activity = str(message["name"])

    def _on_saved(self, row: RankStatus, message: dict[str, Any]) -> None:
        row.shard_nbytes = int(message.get("nbytes", 0))
        row.saved_step = _step(message["step"])
        self._events.saved(row.rank, row.saved_step, Path(message["path"]))

    def _on_common(self, row: RankStatus, message: dict[str, Any]) -> None:
        step = _step(message["step"])
        # A Session of the release before does not have it.
        since = _step(message.get("since", max(0, step - 1)))
        self._events.common(row.rank, step, Path(message["path"]), since=since)

    def _on_kept(self, row: RankStatus, message: dict[str, Any]) -> None:
        self._events.kept(row.rank, _step(message["step"]), Path(message["path"]))

    def _on_save_failed(self, row: RankStatus, message: dict[str, Any]) -> None:
        self._events.save_failed(row.rank, _step(message["step"]), str(message["reason"])[:_MAX_REASON])

    def _on_skipped(self, row: RankStatus, message: dict[str, Any]) -> None:
        self._events.skipped(row.rank, _step(message["step"]))

    def _on_waits(self, row: RankStatus, _message: dict[str, Any]) -> None:
        row.waits = True

    def _on_restored(self, row: RankStatus, message: dict[str, Any]) -> None:
        row.restored = message
        self._events.restored(row.rank, message)

    def _on_allows(self, row: RankStatus, message: dict[str, Any]) -> None:
        row.allows = frozenset(map(str, message["names"]))

    def _on_held(self, row: RankStatus, message: dict[str, Any]) -> None:
        row.paused = True
        # The report of the step itself may be lost, and a rank that is held sends no other.
        row.step = max(row.step, _step(message.get("step", 0)))

    def _on_released(self, row: RankStatus, _message: dict[str, Any]) -> None:
        row.paused = False

    def _on_replayed(self, row: RankStatus, message: dict[str, Any]) -> None:
        digests = [StepDigest.model_validate(each) for each in message.get("digests") or ()]
        row.replayed = {**message, "digests": digests}

    def _on_keeps(self, row: RankStatus, _message: dict[str, Any]) -> None:
        row.keeps = True

    def _on_leaving(self, row: RankStatus, _message: dict[str, Any]) -> None:
        row.leaving = True

    def _on_left(self, row: RankStatus, message: dict[str, Any]) -> None:
        first, row.left = not row.left, True
        if first and message.get("error_type"):
            self._events.lost_peer(row.rank, message)

    def _on_joined(self, row: RankStatus, _message: dict[str, Any]) -> None:
        row.joined = True

    def _on_failed(self, row: RankStatus, message: dict[str, Any]) -> None:
        row.failed = message


def _step(value: Any) -> int:
    """Return the number of a step.

    Raises:
        ValueError: it has more than 64 bits, or is negative.
    """
    step = int(value)
    if not 0 <= step <= MOST_STEPS:
        raise ValueError(f"step {step}: expected 0 to {MOST_STEPS}")
    return step


def _since(before: float, at: float) -> float:
    """Return when a step was made: ``at``, by the rank's clock, unless that cannot be; then it is now.

    A report may be read late, so its own time is the better one. But a script may stop or move its clock (a test
    double, a preloaded library), and would be taken for hanging since then.
    """
    now = time.time()
    return at if before < at <= now else now


def _time(value: Any) -> float:
    at = float(value)
    if not math.isfinite(at):
        raise ValueError(f"time {at}")
    return at


def _phases(reported: dict[str, Any]) -> dict[str, float]:
    """Return the phases that a rank reported, bounded in number and length: a script may name them as it likes."""
    kept = itertools.islice(reported.items(), _MAX_PHASES)
    found = {str(name)[:_MAX_PHASE_NAME]: float(value) for name, value in kept}
    return {name: value for name, value in found.items() if math.isfinite(value) and value >= 0}


def _number(value: float | str | None) -> float | None:
    """Return a number that may have travelled as ``"nan"``, ``"inf"`` or ``"-inf"``."""
    return None if value is None else float(value)


def _mean(before: float | None, value: float) -> float:
    return value if before is None else before + _EWMA * (value - before)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
