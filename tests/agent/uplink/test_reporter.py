from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from holdfast.agent.metrics import Metrics
from holdfast.agent.uplink import reporter as module
from holdfast.agent.uplink.reporter import Reporter
from holdfast.errors import StaleError, UnauthorizedError
from holdfast.models.agent import Heard, Heartbeat, Register, Report
from holdfast.models.alert import Alert, AlertKind

REGISTER = Register(machine="m0", incarnation="i", address="a:1", data_address="a:2", pid=1)
Answer = Callable[[str, int], httpx.Response]


class Wire:
    """Records requests; answers each by path and how often that path was asked."""

    def __init__(self, answer: Answer) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self._answer = answer
        self._waiting: list[tuple[Callable[[], bool], asyncio.Event]] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.rpartition("/")[2]
        self.seen.append((path, json.loads(request.content)))
        for condition, event in self._waiting:
            if condition():
                event.set()
        return self._answer(path, self.count(path))

    def count(self, path: str) -> int:
        return sum(1 for seen, _ in self.seen if seen == path)

    async def until(self, condition: Callable[[], bool]) -> None:
        event = asyncio.Event()
        self._waiting.append((condition, event))
        if not condition():
            await asyncio.wait_for(event.wait(), 30)


OK = httpx.Response(200, json={"ok": True})


def error(status: int, name: str) -> httpx.Response:
    return httpx.Response(status, json={"error": name, "message": "m"})


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(module, "_LONGEST_WAIT_S", 0.0)


def make(answer: Answer) -> tuple[Wire, Reporter]:
    wire = Wire(answer)
    http = httpx.AsyncClient(transport=httpx.MockTransport(wire.handle), base_url="http://gateway")
    return wire, Reporter("http://gateway", "s", Metrics(), http)


def run(reporter: Reporter) -> asyncio.Task[None]:
    beat = Heartbeat(machine="m0", incarnation="i", at=1.0)
    return asyncio.create_task(reporter.run(REGISTER, 0.01, lambda: beat, lambda _: None))


def report(step: int) -> Report:
    return Report(machine="m0", incarnation="i", job="toy", epoch=1, done=(step,))


async def test_events_keep_their_order_while_the_gateway_fails() -> None:
    """An event is sent again until it is taken, and the next one waits for it."""
    wire, reporter = make(lambda path, n: httpx.Response(503) if path == "events" and n < 4 else OK)
    for number in range(3):
        reporter.report(report(number))
    task = run(reporter)
    await wire.until(lambda: wire.count("events") == 6)
    assert [body["done"] for path, body in wire.seen if path == "events"] == [[0]] * 4 + [[1], [2]]
    task.cancel()


async def test_registration_comes_first_and_is_repeated() -> None:
    """Nothing is reported before the gateway knows the machine."""
    wire, reporter = make(lambda path, n: httpx.Response(502) if path == "register" and n < 3 else OK)
    reporter.report(report(0))
    task = run(reporter)
    await wire.until(lambda: wire.count("heartbeat") > 0 and wire.count("events") > 0)
    assert [path for path, _ in wire.seen][:3] == ["register"] * 3
    task.cancel()


async def test_an_unknown_machine_registers_again() -> None:
    """A gateway with a new ledger learns of the machine from its next heartbeat."""
    wire, reporter = make(lambda path, n: error(404, "UnknownError") if (path, n) == ("heartbeat", 2) else OK)
    task = run(reporter)
    await wire.until(lambda: wire.count("register") == 2)
    task.cancel()


async def test_a_replaced_incarnation_is_notified() -> None:
    """409 StaleError ends the reporter: the agent must leave."""
    _, reporter = make(lambda path, n: error(409, "StaleError") if path == "heartbeat" else OK)
    with pytest.raises(StaleError):
        await asyncio.wait_for(run(reporter), 30)


async def test_a_wrong_secret_ends_it_before_the_machine_is_known_only() -> None:
    """At the first registration a person must act; later the gateway is asked again."""
    _, reporter = make(lambda path, n: error(401, "UnauthorizedError"))
    with pytest.raises(UnauthorizedError, match="secret file"):
        await asyncio.wait_for(run(reporter), 30)
    wire, reporter = make(lambda path, n: error(401, "UnauthorizedError") if path == "events" else OK)
    reporter.report(report(0))
    task = run(reporter)
    await wire.until(lambda: wire.count("events") == 1 and wire.count("heartbeat") > 3)
    assert not task.done()
    task.cancel()


async def test_a_refused_event_does_not_block_the_next() -> None:
    """An event that the gateway will never accept is dropped."""
    wire, reporter = make(lambda path, n: error(422, "SettingsError") if (path, n) == ("events", 1) else OK)
    reporter.report(report(0))
    reporter.report(report(1))
    task = run(reporter)
    await wire.until(lambda: wire.count("events") == 2)
    assert [body["done"] for path, body in wire.seen if path == "events"] == [[0], [1]]
    task.cancel()


async def test_text_that_is_no_unicode_ends_no_agent() -> None:
    """Else its ranks would end with it, and its machine be taken for lost."""
    found = {"message": "cannot read bad\udcff.bin", "names": {"\udcff": ["\udcff", 1, float("nan")]}}
    alert = Alert(kind=AlertKind.RANK_EXIT, rank=0, at=1.0, evidence=found)
    wire, reporter = make(lambda path, n: OK)
    reporter.report(Report(machine="m0", incarnation="i", job="toy", epoch=1, alerts=(alert,)))
    reporter.report(report(1))
    task = run(reporter)
    await wire.until(lambda: wire.count("events") == 2)
    events = [body for path, body in wire.seen if path == "events"]
    (sent,) = events[0]["alerts"]
    assert sent["kind"] == "rank_exit"
    assert sent["evidence"] == {"message": "cannot read bad?.bin", "names": {"?": ["?", 1, None]}}
    assert events[1]["done"] == [1]
    assert not task.done()
    task.cancel()


async def test_the_buffer_is_bounded() -> None:
    """A gateway that stays away costs bounded memory; what is lost is counted."""
    _, reporter = make(lambda path, n: OK)
    for number in range(1200):
        reporter.report(report(number))
    assert len(reporter._events) == 1000
    assert reporter._events[0].done == (200,)
    assert b"holdfast_reports_dropped_total 200.0" in reporter._metrics.render()


async def test_of_several_gateways_the_one_that_leads_is_kept_to() -> None:
    """One that stands by (503) or is away is left for the next; then the agent stays there, events in order."""
    asked: list[tuple[str, str]] = []
    leader = ["g2"]

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.host, request.url.path.rpartition("/")[2]))
        if request.url.host == "away":
            raise httpx.ConnectError("refused")
        return OK if request.url.host == leader[0] else error(503, "UnavailableError")

    http = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    reporter = Reporter("http://g1, http://away,http://g2", "s", Metrics(), http)
    reporter.report(report(0))
    task = run(reporter)

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    await until(lambda: ("g2", "events") in asked and ("g2", "heartbeat") in asked)
    registered = [host for host, path in asked if path == "register"]
    assert registered == ["g1", "away", "g2"]
    leader[0] = "g1"
    await until(lambda: ("g1", "heartbeat") in asked)
    asked.clear()
    await until(lambda: len(asked) >= 3)
    assert {host for host, _ in asked} == {"g1"}
    task.cancel()


async def test_a_change_does_not_wait_for_the_next_heartbeat() -> None:
    """Heartbeats an hour apart: the second one is there because it was asked for; answers are handed on."""
    answers: list[Heard] = []
    wire = Wire(lambda path, n: OK)
    http = httpx.AsyncClient(transport=httpx.MockTransport(wire.handle), base_url="http://gateway")
    reporter = Reporter("http://gateway", "s", Metrics(), http, on_answer=answers.append)
    beat = Heartbeat(machine="m0", incarnation="i", at=1.0)
    task = asyncio.create_task(reporter.run(REGISTER, 3600.0, lambda: beat, lambda _: None))
    await wire.until(lambda: wire.count("heartbeat") == 1)
    await asyncio.sleep(0)
    reporter.hurry()
    await wire.until(lambda: wire.count("heartbeat") == 2)
    task.cancel()
    assert answers[0] == Heard()


@pytest.mark.parametrize("where", ["made", "delivered"])
async def test_agent_beats_on_after_an_error_of_its_own(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """An agent that ends takes its ranks along: the error is logged once, and the next heartbeat goes out."""
    wire, reporter = make(lambda path, n: OK)
    made = 0

    def heartbeat() -> Heartbeat:
        nonlocal made
        made += 1
        if where == "made" and made < 5:
            raise KeyError(3)
        return Heartbeat(machine="m0", incarnation="i", at=1.0)

    def delivered(_: Heartbeat) -> None:
        if where == "delivered" and made < 5:
            raise KeyError(3)

    task = asyncio.create_task(reporter.run(REGISTER, 0.01, heartbeat, delivered))
    await wire.until(lambda: (made > 5 and wire.count("heartbeat") > 1) or task.done())
    assert not task.done()
    task.cancel()
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
