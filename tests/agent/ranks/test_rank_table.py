from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.ranks.rank_table import RankTable
from holdfast.agent.wire import Sender
from holdfast.models.agent import RankPhase, StepMark
from holdfast.policies.detect.jumps import Jump


class Events:
    """Remembers events."""

    def __init__(self) -> None:
        self.all: list[tuple[Any, ...]] = []
        self.arrived = asyncio.Event()

    def first_step(self, mark: StepMark) -> None:
        self.all.append(("first", mark.step))

    def not_finite(self, rank: int, step: int, metric: str, value: str) -> None:
        self.all.append(("nan", rank, step, metric, value))

    def jumped(self, rank: int, step: int, metric: str, jump: Jump) -> None:
        self.all.append(("jump", rank, step, metric, round(jump.factor)))

    def saved(self, rank: int, step: int, path: Path) -> None:
        self.all.append(("saved", rank, step, path.name))
        self.arrived.set()

    def common(self, rank: int, step: int, path: Path, *, since: int) -> None:
        self.all.append(("common", rank, step, path.name))

    def save_failed(self, rank: int, step: int, reason: str) -> None:
        self.all.append(("save_failed", rank, step, reason))

    def skipped(self, rank: int, step: int) -> None:
        self.all.append(("skipped", rank, step))

    def restored(self, rank: int, cost: Mapping[str, Any]) -> None:
        self.all.append(("restored", rank, cost["tier"]))


Say = Callable[..., None]


def _begun_long_ago(table: RankTable) -> RankTable:
    """Times of steps are small numbers here."""
    for row in table.rows.values():
        row.step_at = 0.0
    return table


@pytest.fixture
async def events() -> Events:
    return Events()


@pytest.fixture
async def board(tmp_path: Path, events: Events) -> AsyncIterator[RankTable]:
    made = _begun_long_ago(RankTable(tmp_path / "s", 3, (2, 5), events))
    yield made
    made.close()


@pytest.fixture
async def say(board: RankTable) -> Say:
    return partial(_say, board)


def _say(board: RankTable, kind: str, rank: int = 2, epoch: int = 3, **fields: Any) -> None:
    assert Sender(str(board.path)).send({"t": kind, "rank": rank, "epoch": epoch, **fields})
    board.drain()


async def test_a_rank_that_reports_a_step_is_held_no_more(board: RankTable, say: Say) -> None:
    """The report that it was let go is sent once, and may be lost: its hang would be taken for a pause."""
    say("held", step=7)
    say("step", step=8, at=1.0, s=0.1)
    assert not board.rows[2].paused


async def test_a_held_rank_whose_last_step_was_not_reported_is_held_at_that_step(
    board: RankTable, say: Say
) -> None:
    """A datagram may be lost, and a rank that is held sends no further step: the boundary would never be one."""
    say("step", step=7, at=1.0)
    say("held", step=8)
    assert (board.rows[2].step, board.rows[2].paused) == (8, True)
    say("held", step=8)
    assert board.rows[2].step == 8


async def test_skipped_saves_and_restores_are_reported(say: Say, events: Events) -> None:
    """They become metrics."""
    say("restored", tier="peer", step=3, s=0.5)
    say("skipped", step=4, skipped=1)
    assert events.all == [("restored", 2, "peer"), ("skipped", 2, 4)]


async def test_steps_make_the_state(board: RankTable, say: Say) -> None:
    """Step, loss and duration of a rank come from its datagrams."""
    say("activity", name="eval")
    assert board.rows[2].activity == "eval"
    say("step", step=11, at=5.0, s=0.5, loss=2.0, grad_norm=None)
    say("step", step=12, at=6.0, s=1.0, loss=1.5, grad_norm=3.0)
    state = board.rows[2].state(77, None, 1.5, "S", exited=False)
    assert (state.step, state.steps_done, state.step_at, state.loss) == (12, 2, 6.0, 1.5)
    assert (state.phase, state.activity) == (RankPhase.RUNNING, "")
    assert state.step_s == pytest.approx(0.6)
    assert board.rows[5].state(78, None, 0, "S", exited=False).phase is RankPhase.STARTING


async def test_a_rank_that_never_spoke_reports_no_steps(board: RankTable, say: Say) -> None:
    """As far as the agent knows, it has no Session."""
    assert not board.rows[5].state(7, None, 0.0, "S", exited=False).reports
    say("activity", rank=5, name="eval")
    assert board.rows[5].state(7, None, 0.0, "S", exited=False).reports


async def test_marks_follow_rank_0(tmp_path: Path, events: Events) -> None:
    """One mark per step of the job, kept until they were delivered."""
    with closing(_begun_long_ago(RankTable(tmp_path / "s", 3, (5, 0), events))) as board:
        for step in (11, 12):
            for rank in (5, 0):
                _say(board, "step", rank, step=step, at=float(step), s=0.1)
        assert [mark.step for mark in board.marks] == [11, 12]
        assert events.all == [("first", 11)]
        board.delivered_until(11.0)
        assert [mark.step for mark in board.marks] == [12]


async def test_other_ranks_leave_no_marks(board: RankTable, say: Say, events: Events) -> None:
    """The same step from a thousand machines at once is no news."""
    say("step", 2, step=11, at=1.0, s=0.1)
    assert not board.marks
    assert not events.all
    assert [one.step for one in board.times] == [11]


async def test_phases_of_steps_become_means_and_the_newest_steps_in_full(board: RankTable, say: Say) -> None:
    """Every rank reports a mean per phase; the lowest rank also its newest steps, until they were delivered."""
    for step in range(1, 21):
        for rank in (2, 5):
            phases = {"forward": 0.2, "backward": 0.4} | ({"eval": 5.0} if step == 20 else {})
            say("step", rank, step=step, at=float(step), s=0.7, phases=phases)
    state = board.rows[5].state(78, None, 0, "S", exited=False)
    assert state.phases == {"forward": 0.2, "backward": 0.4, "eval": 5.0}
    assert [(one.step, one.s) for one in board.times] == [(step, 0.7) for step in range(13, 21)]
    assert board.times[-1].phases == {"forward": 0.2, "backward": 0.4, "eval": 5.0}
    say("step", 5, step=21, at=21.0, s=0.7, phases={"forward": 0.7, "backward": 0.4})
    assert board.rows[5].usual_phases == pytest.approx({"forward": 0.3, "backward": 0.4})
    board.delivered_until(18.0)
    assert [one.step for one in board.times] == [19, 20]


async def test_phases_are_bounded_whatever_a_script_names_them(board: RankTable, say: Say) -> None:
    """A phase per sample would grow heartbeats without end: the first thirty-two count, with short names."""
    for step in range(1, 4):
        say("step", step=step, at=1.0, s=0.1, phases={f"{step}-{n}-{'x' * 500}": 0.1 for n in range(100)})
    mean = board.rows[2].usual_phases
    assert len(mean) == 32
    assert max(map(len, mean)) == 40
    assert all(len(one.phases) == 32 for one in board.times)
    say("step", step=4, at=1.0, s=0.1, phases={"fine": 0.1, "wrong": -1.0, "odd": float("inf")})
    assert board.rows[2].phases == {"fine": 0.1}


async def test_the_first_bad_number_is_reported_once(board: RankTable, say: Say, events: Events) -> None:
    """NaN spreads over ranks and steps; one alert is enough."""
    say("step", 5, step=4, at=1.0, s=0.1, loss="nan")
    say("step", 2, step=4, at=1.0, s=0.1, loss="inf")
    assert [event for event in events.all if event[0] == "nan"] == [("nan", 5, 4, "loss", "nan")]
    assert board.rows[2].not_finite == "loss inf at step 4"
    assert board.rows[2].state(1, None, 0, "", exited=False).loss is None


async def test_other_epochs_and_rubbish_are_dropped(board: RankTable, say: Say, events: Events) -> None:
    """A rank of an older epoch that is not dead yet must not be heard."""
    say("step", epoch=2, step=9, at=1.0, s=0.1)
    say("step", rank=99, step=9, at=1.0, s=0.1)
    say("nonsense")
    say("step", step="x")
    Sender(str(board.path))._socket.sendto(b"\xff{", str(board.path))
    board.drain()
    assert board.rows[2].step == 0
    assert events.all == []


@pytest.mark.parametrize(
    "datagram",
    [
        b'{"t": "step", "rank": 2, "epoch": 3, "step": Infinity, "at": 1.0}',
        b'{"t": "step", "rank": 2, "epoch": 3, "step": 9223372036854775808, "at": 1.0}',
        b'{"t": "step", "rank": 2, "epoch": 3, "step": 4, "at": 1' + b"0" * 400 + b"}",
        b'{"t": "skipped", "rank": 2, "epoch": 3, "step": -1}',
        b'{"t": "common", "rank": 2, "epoch": 3, "step": Infinity, "path": "/x/f"}',
        b"[" * 100_000,
    ],
    ids=["infinite step", "65 bits", "endless time", "skipped -1", "infinite save", "nested"],
)
async def test_no_datagram_ends_the_reading(board: RankTable, events: Events, datagram: bytes) -> None:
    """The agent reads on after any datagram; the last words of other ranks come behind it."""
    sender = Sender(str(board.path))
    sender._socket.sendto(datagram, str(board.path))
    assert sender.send({"t": "step", "rank": 5, "epoch": 3, "step": 7, "at": 1.0, "s": 0.1})
    board.drain()
    assert board.rows[2].step == 0
    assert board.rows[5].step == 7
    assert events.all == []


async def test_half_characters_reach_no_message_of_the_agent(board: RankTable, say: Say) -> None:
    """As in an error that names a file whose name is not Unicode: the agent could not write its heartbeat."""
    say("failed", error_type="ValueError", message="cannot read bad\udcff.bin", traceback="")
    say("activity", name="load \udcff")
    row = board.rows[2]
    assert row.failed is not None
    assert row.failed["message"] == "cannot read bad?.bin"
    assert b"load ?" in row.state(1, None, 0.0, "", exited=False).model_dump_json().encode()
    say("activity", name="\U0001f680")
    assert row.activity == "\U0001f680"


async def test_datagrams_arrive_without_asking(board: RankTable, events: Events) -> None:
    """The event loop reads the socket by itself."""
    Sender(str(board.path)).send({"t": "saved", "rank": 2, "epoch": 3, "step": 1, "path": "/x/f"})
    await asyncio.wait_for(events.arrived.wait(), 30)
    assert events.all == [("saved", 2, 1, "f")]


async def test_a_loss_that_stays_five_times_as_high_is_a_jump(say: Say, events: Events) -> None:
    """One step alone, or two, are bad batches; reported once while it lasts, and again when it comes again later."""

    def steps(first: int, *losses: float) -> list[tuple[Any, ...]]:
        events.all.clear()
        for number, loss in enumerate(losses):
            say("step", step=first + number, at=1.0, s=0.1, loss=loss, grad_norm=1.0)
        return [event for event in events.all if event[0] == "jump"]

    assert steps(1, *[2.0] * 30) == []
    assert steps(31, 14.0, 2.0, 2.0) == []
    assert steps(34, 14.0, 14.0, *[2.0] * 64) == []
    assert steps(100, 14.0, 14.0, 14.0, 14.0) == [("jump", 2, 102, "loss", 7)]
    assert steps(104, *[2.0] * 64, 14.0, 14.0, 14.0) == [("jump", 2, 170, "loss", 7)]


async def test_phases_and_utilisation_are_in_the_state(board: RankTable, say: Say) -> None:
    """Usual seconds of each phase, for the detection of stragglers."""
    for step in range(1, 30):
        say("step", step=step, at=1.0, s=0.3, phases={"forward": 0.1, "backward": 0.2}, mfu=0.4)
    state = board.rows[2].state(1, None, 0.0, "R", False)
    assert state.mfu == 0.4
    assert state.phases == {"forward": pytest.approx(0.1), "backward": pytest.approx(0.2)}
    say("step", step=30, at=1.0, s=0.3, phases={f"p{number}": 1.0 for number in range(500)}, mfu="nan")
    state = board.rows[2].state(1, None, 0.0, "R", False)
    assert state.mfu is None
    assert len(state.phases) <= 32
    assert (state.saves_at, state.saves_every) == (0, 1)
    say("step", step=31, at=1.0, s=0.3, saves=(27, 9))
    state = board.rows[2].state(1, None, 0.0, "R", False)
    assert (state.saves_at, state.saves_every) == (27, 9)


@pytest.mark.parametrize("clock", [1e9, 4e9], ids=["stopped", "ahead"])
async def test_a_rank_with_a_clock_of_its_own_makes_its_steps_when_they_are_reported(
    tmp_path: Path, events: Events, clock: float
) -> None:
    """A script that replaces ``time.time`` was taken for hanging since then, or for never."""
    began = time.time()
    with closing(RankTable(tmp_path / "s", 3, (0,), events)) as table:
        for step in (7, 8):
            _say(table, "step", 0, step=step, at=clock, s=0.1)
            table.drain()
        assert began <= table.rows[0].step_at <= time.time()
        assert [began <= mark.at <= time.time() for mark in table.marks] == [True, True]


async def test_a_clock_that_stopped_a_moment_ago_is_not_believed_twice(board: RankTable, say: Say) -> None:
    """Two steps are not made at one time."""
    stopped_at = time.time() - 0.01
    for step in (1, 2):
        say("step", 2, step=step, at=stopped_at, s=0.1)
    assert board.rows[2].step_at > stopped_at
