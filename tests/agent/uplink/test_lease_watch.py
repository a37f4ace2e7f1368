"""The lease of a machine: real sockets, and other agents that report whether they reach the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from holdfast.agent.uplink.contact import Standing, asked_by_gateway, is_gateway, term_of
from holdfast.agent.uplink.lease_watch import LeaseWatch
from holdfast.errors import UndyingError
from holdfast.models.agent import Contact, Heard, Witness
from holdfast.policies.detect import silence
from holdfast.secret import keys
from tests.agent.gateway import until

LEASE_S = 300.0
"""By a clock of the test's own: answers that are waited for have a fifth of it, on a host that is busy as well."""
SHORT_S = 1.0
"""Where an answer is waited for that never comes."""
SECRET = keys("s")


class Neighbour:
    """Another machine's agent, as far as it is asked about the gateway."""

    def __init__(self) -> None:
        self.contact = Contact(heard_s=0.0, since_s=100_000.0)
        self.other: object = None
        """Its answer, where it is no agent."""
        self.asked = 0
        config = uvicorn.Config(
            Starlette(routes=[Route("/v1/contact", self._contact)]), port=0, log_config=None, lifespan="off"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        until(lambda: self._server.started)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.witness = Witness(name="m7", address=f"127.0.0.1:{port}")

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(5)

    async def _contact(self, request: Request) -> JSONResponse:
        assert request.headers["authorization"] == "Bearer s"
        self.asked += 1
        return JSONResponse(self.contact.model_dump() if self.other is None else self.other)


@pytest.fixture
def neighbour() -> Iterator[Neighbour]:
    one = Neighbour()
    yield one
    one.stop()


@pytest.fixture
def mute() -> Iterator[Witness]:
    """A machine that takes connections and never answers, as one out of reach looks."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield Witness(name="m8", address=f"127.0.0.1:{listening.getsockname()[1]}")


class Clock:
    """Turned by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Machine:
    """One with ranks, whose gateway fell silent just now; ``back``: it answers a last try.

    Between two looks at its ranks the time passes after which others are asked.
    """

    def __init__(self, *witnesses: Witness, lease_s: float = LEASE_S) -> None:
        self.clock = Clock()
        self.standing = Standing(self.clock)
        self.granted = Heard(lease_s=lease_s, witnesses=witnesses)
        self.stopped: asyncio.Queue[str] = asyncio.Queue()
        self.probes: asyncio.Queue[float] = asyncio.Queue()
        self.runs = True
        self.back = False
        self.undying = 0
        self.lease = LeaseWatch(
            self.standing, SECRET, probe_gateways=self._probe, runs=self._look, stop=self._stop
        )
        self.standing.answered(self.standing._now(), self.granted)

    def _look(self) -> bool:
        self.clock.now += silence.ASK_SHARE * self.standing.lease_s
        return self.runs

    async def _probe(self, patience_s: float) -> None:
        self.probes.put_nowait(patience_s)
        self.clock.now += patience_s
        if self.back:
            self.standing.answered(self.standing._now(), self.granted)

    async def _stop(self, why: str) -> None:
        if self.undying:
            self.undying -= 1
            raise UndyingError("ranks (rank, pid) [(0, 7)] did not die within 8 s of SIGKILL")
        self.runs = False
        self.stopped.put_nowait(why)

    @contextlib.asynccontextmanager
    async def watched(self):
        task = asyncio.create_task(self.lease.run())
        try:
            yield self
        finally:
            task.cancel()

    async def probed(self, times: int) -> None:
        for _ in range(times):
            await asyncio.wait_for(self.probes.get(), 60)


async def test_ranks_end_when_another_machine_has_contact_with_the_gateway(neighbour: Neighbour) -> None:
    """Before the lease is over, with the reason."""
    machine = Machine(neighbour.witness)
    async with machine.watched():
        why = await asyncio.wait_for(machine.stopped.get(), 60)
    assert "answers m7" in why
    assert neighbour.asked == 1


async def test_ranks_that_do_not_die_are_ended_again(neighbour: Neighbour) -> None:
    """The agent does not end over it: its memory has copies for other machines."""
    machine = Machine(neighbour.witness)
    machine.undying = 2
    async with machine.watched():
        await asyncio.wait_for(machine.stopped.get(), 60)
    assert neighbour.asked == 3


async def test_ranks_go_on_when_no_machine_has_contact_with_the_gateway(neighbour: Neighbour) -> None:
    """It is away, and training does not need it; others are asked again and again."""
    neighbour.contact = Contact(heard_s=100_000.0, since_s=200_000.0)
    machine = Machine(neighbour.witness)
    async with machine.watched():
        await machine.probed(3)
    assert machine.runs


async def test_silence_is_compared_with_that_of_others_when_they_were_asked(neighbour: Neighbour) -> None:
    """The gateway is away; its last answer to this machine was its last but one to the other.

    The last try of a gateway whose host is gone takes all of its time, in which the other's answer grows old.
    """
    neighbour.contact = Contact(heard_s=0.35 * LEASE_S, since_s=100_000.0)
    machine = Machine(neighbour.witness)
    machine.clock.now += silence.ASK_SHARE * LEASE_S
    assert await machine.lease.why_cut_off() == ""
    assert neighbour.asked == 1


@pytest.mark.parametrize("other", ["welcome", {"status": "fine"}, {"heard_s": "soon", "since_s": 1}])
async def test_an_answer_that_is_none_of_an_agent_ends_no_ranks(neighbour: Neighbour, other: object) -> None:
    """The witness is gone, and another program has its address by now; the agent looks on, and so do its ranks."""
    neighbour.other = other
    machine = Machine(neighbour.witness)
    async with machine.watched():
        await machine.probed(3)
    assert neighbour.asked >= 2
    assert machine.runs


async def test_ranks_end_where_nothing_is_reached(mute: Witness) -> None:
    """Neither gateway nor any other machine."""
    machine = Machine(mute, lease_s=SHORT_S)
    async with machine.watched():
        why = await asyncio.wait_for(machine.stopped.get(), 60)
    assert why.startswith("neither")


async def test_a_refusal_shows_that_the_network_works() -> None:
    """The other agent is down, its host answers: this machine is not cut off."""
    with socket.socket() as held:  # nothing listens there, and no other process may
        held.bind(("127.0.0.1", 0))
        machine = Machine(Witness(name="m9", address=f"127.0.0.1:{held.getsockname()[1]}"))
        async with machine.watched():
            await machine.probed(3)
    assert machine.runs


async def test_a_gateway_that_answers_the_last_try_is_enough(neighbour: Neighbour) -> None:
    """Whatever the others hear."""
    machine = Machine(neighbour.witness)
    machine.back = True
    async with machine.watched():
        await machine.probed(2)
    assert machine.runs


async def test_without_a_lease_or_ranks_no_machine_is_asked(neighbour: Neighbour) -> None:
    """A gateway that grants none is an older one."""
    for machine in (Machine(neighbour.witness, lease_s=0.0), Machine(neighbour.witness)):
        machine.runs = bool(machine.standing.lease_s == 0)
        async with machine.watched():
            await asyncio.sleep(0)
            assert not machine.lease.is_due
    assert neighbour.asked == 0


def test_a_lease_counts_from_when_a_heartbeat_was_sent() -> None:
    """Not from its answer, which may have been long on its way."""
    clock = Clock()
    standing = Standing(clock)
    clock.now = 104.0
    standing.answered(101.0, Heard(lease_s=5.0))
    assert standing.silent_s == pytest.approx(3.0)


def test_an_eviction_under_way_prolongs_nothing() -> None:
    """The machine's ranks are counted as gone when the last lease is over."""
    clock = Clock()
    standing = Standing(clock)
    standing.answered(100.0, Heard(lease_s=5.0))
    clock.now = 102.0
    standing.answered(102.0, Heard(lease_s=5.0, renews=False))
    assert standing.silent_s == pytest.approx(2.0)


def test_a_leader_that_was_replaced_renews_nothing() -> None:
    """It may be cut off from the ledger alone; the next one asks or answers with a later term."""
    clock = Clock()
    standing = Standing(clock)
    clock.now = 100.0
    assert standing.answered(100.0, Heard(lease_s=5.0, term=3))
    standing.asked(4)
    clock.now = 104.0
    assert not standing.answered(104.0, Heard(lease_s=50.0, term=3))
    standing.asked(3)
    assert (standing.silent_s, standing.lease_s) == (pytest.approx(4.0), 5.0)
    assert standing.answered(104.0, Heard(lease_s=5.0)), "an older release names no term"
    clock.now = 116.0
    # The ledger was put back: no later leader is left.
    assert standing.answered(116.0, Heard(lease_s=5.0, term=3))
    assert not standing.answered(116.0, Heard(lease_s=5.0, term=2))


def test_the_longest_silence_is_remembered_for_a_while() -> None:
    """Silences that a longer one followed are not; whatever ends one counts: a heartbeat, or the gateway's question."""
    clock = Clock()
    standing = Standing(clock)
    assert standing.longest_s() == 0.0
    for gap_s in (1.0, 4.0, 0.5, 2.0, 0.5):
        clock.now += gap_s
        standing.asked()
    assert standing.longest_s() == pytest.approx(4.0)
    clock.now += 3.0
    standing.answered(clock.now - 2.0, Heard(lease_s=5.0))
    assert standing.longest_s() == pytest.approx(4.0), "not the present silence"
    clock.now += silence.REMEMBERED_S - 5.0
    assert standing.longest_s() == pytest.approx(3.0), "until its answer came"
    clock.now += 6.0
    assert standing.longest_s() == 0.0


def test_an_outage_hides_no_delay() -> None:
    """A host that slept, or a gateway that was away, is no evidence about delays before and since."""
    clock = Clock()
    standing = Standing(clock)
    standing.answered(clock.now, Heard(lease_s=5.0, longest_delay_s=20.5))
    for gap_s in (4.0, 28.0, 3.0):
        clock.now += gap_s
        standing.answered(clock.now, Heard(lease_s=5.0, longest_delay_s=20.5))
    assert standing.longest_s() == pytest.approx(4.0)
    clock.now += silence.REMEMBERED_S - 30.0
    assert standing.longest_s() == pytest.approx(3.0), "nor is it remembered itself"


def test_contact_without_a_gap() -> None:
    """A gap starts the count again; the gateway's own question counts."""
    clock = Clock()
    standing = Standing(clock)
    for _ in range(10):
        clock.now += 1.0
        standing.answered(clock.now, Heard(lease_s=5.0))
    assert standing.contact().since_s == pytest.approx(10.0)
    clock.now += 4.0
    standing.asked()
    clock.now += 1.0
    assert standing.contact() == Contact(heard_s=1.0, since_s=1.0)


def test_contact_begins_with_each_leader() -> None:
    """One that took over a second ago has served no machine for longer; a release without terms names no leader."""
    clock = Clock()
    standing = Standing(clock)
    for term in (0, 3, 3, 4, 4):
        clock.now += 1.0
        standing.answered(clock.now, Heard(lease_s=5.0, term=term))
    assert standing.contact().since_s == pytest.approx(1.0)
    standing.asked(5)
    clock.now += 0.5
    assert standing.contact().since_s == pytest.approx(0.5)


def test_only_the_gateway_is_the_gateway() -> None:
    """A liveness probe of Kubernetes, or a client without the secret, prolongs nothing."""
    headers = {key.lower(): value for key, value in asked_by_gateway(SECRET).items()}
    assert is_gateway(headers, SECRET)
    assert (term_of(headers), term_of({"x-holdfast-term": "x"})) == (0, 0)
    later = {key.lower(): value for key, value in asked_by_gateway(SECRET, 7).items()}
    assert (is_gateway(later, SECRET), term_of(later)) == (True, 7)
    assert not is_gateway(headers, keys("another"))
    assert not is_gateway({"authorization": headers["authorization"]}, SECRET)
    assert silence.ASK_SHARE < 1
