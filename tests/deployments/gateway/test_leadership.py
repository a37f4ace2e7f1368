"""Two gateways over one ledger: one acts, the other stands by and takes over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from holdfast.clock import SystemClock
from holdfast.deployments.gateway import __main__ as program
from holdfast.deployments.gateway import leadership
from holdfast.deployments.gateway.app import create_app
from holdfast.deployments.gateway.leadership import TTL_S, Leadership
from holdfast.deployments.gateway.runs.flow_runs import RunPhase
from holdfast.errors import UnavailableError
from holdfast.models.lease import Leader
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger
from holdfast.testing.gateway_kit import JOB, SECRET, Kit


class Pair:
    """Two gateways, their loops under the test's control."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.ledgers = [Ledger(kit.settings.database) for _ in range(2)]
        self.apps = [self._app(number) for number in range(2)]
        self.contexts = [app.router.lifespan_context(app) for app in self.apps]

    def _app(self, number: int):  # type: ignore[no-untyped-def]
        kit = self.kit
        return create_app(
            kit.settings,
            self.ledgers[number],
            SystemClock(),
            kit.runs,
            prober=kit.prober,
            acts=kit.acts,
            secret=SECRET,
            leader=f"g{number}",
        )

    async def get(self, number: int, path: str) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.apps[number])
        headers = {"Authorization": f"Bearer {SECRET}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://g", headers=headers) as http:
            return await http.get(path)

    def leader(self) -> str:
        return self.ledgers[0].lead("nobody", "").holder


@pytest.fixture
async def pair(kit: Kit) -> AsyncIterator[Pair]:
    made = Pair(kit)
    yield made
    for ledger in made.ledgers:
        ledger.close()


async def test_the_second_stands_by_and_takes_over(pair: Pair) -> None:
    """It answers whether it lives, and refuses all else with the leader's address, until the leader ends."""
    async with pair.contexts[1]:
        async with pair.contexts[0]:
            pass
        # g1 was first; g0 never led.
        assert pair.leader() == "g1"
        assert (await pair.get(1, "/v1/jobs")).status_code == 200
        assert (await pair.get(1, "/readyz")).status_code == 200
        refused = await pair.get(0, "/v1/jobs")
        assert refused.status_code == 503
        assert "stands by; the one at http://127.0.0.1:4300 leads" in refused.json()["message"]
        assert (await pair.get(0, "/readyz")).status_code == 503
        assert (await pair.get(0, "/healthz")).status_code == 200
        assert (await pair.get(0, "/metrics")).status_code == 200
        # Nothing that would page people: Prefect and the machines are the leader's.
        assert "holdfast_prefect_up NaN" in (await pair.get(0, "/metrics")).text
    # It resigned at its end, so that no gateway waits.
    taken = pair.ledgers[0].lead("g0", "")
    assert taken.holder == "g0"


async def test_a_wrong_secret_is_refused_by_one_that_stands_by_too(pair: Pair) -> None:
    """With 401: a stranger does not learn who leads."""
    async with pair.contexts[0], pair.contexts[1]:
        transport = httpx.ASGITransport(app=pair.apps[1])
        async with httpx.AsyncClient(transport=transport, base_url="http://g") as http:
            assert (await http.get("/v1/jobs")).status_code == 401


async def test_a_leader_that_was_silent_is_replaced_and_writes_nothing_more(
    pair: Pair, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loops may still run when it wakes up: the ledger refuses them."""
    monkeypatch.setattr("holdfast.deployments.gateway.leadership.RENEW_S", 3600)
    await kit.running_job()
    async with pair.contexts[0]:
        gateway = pair.apps[0].state.gateway
        kit.ledger.resign("g0")  # as if its time were up
        assert pair.ledgers[1].lead("g1", "").holder == "g1"
        with pytest.raises(UnavailableError, match="gateway g0 does not lead: g1 does"):
            gateway.site.ledger.set_job(JOB, machines=[])


class Idle:
    """Loops that only say whether they run."""

    runs = False

    async def resume(self) -> None:
        """Nothing to take up."""

    def start(self) -> None:
        self.runs = True

    async def stop(self) -> None:
        self.runs = False


class Candidates:
    """Two gateways, each with a monotonic clock of its own; they look when a test calls."""

    def __init__(self, kit: Kit) -> None:
        self.now = [1000.0, 5.0]
        self.ledgers = [Ledger(kit.settings.database) for _ in range(2)]
        self.loops = [Idle(), Idle()]
        self.each = [
            Leadership(self.ledgers[n], self.loops[n], f"g{n}", f"http://g{n}", lambda n=n: self.now[n])
            for n in range(2)
        ]

    async def look(self, *numbers: int) -> list[bool]:
        for number in numbers:
            await self.each[number]._look()
        return [each.leads for each in self.each]

    def passes(self, seconds: float) -> None:
        self.now = [each + seconds for each in self.now]


@pytest.fixture
def candidates(kit: Kit) -> Iterator[Candidates]:
    made = Candidates(kit)
    yield made
    for ledger in made.ledgers:
        ledger.close()


@pytest.mark.parametrize("step_s", [-7200.0, 0.0, 7200.0, 86_400.0])
async def test_clocks_that_are_set_make_and_end_no_leader(
    candidates: Candidates, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    """By hours, in either direction: a leader that renews stays, and one that is dead is replaced after TTL_S."""
    assert await candidates.look(0, 1) == [True, False]
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + step_s)
    for _ in range(12):
        candidates.passes(1.0)
        assert await candidates.look(0, 1) == [True, False]
    candidates.passes(TTL_S - 0.1)
    assert await candidates.look(1) == [True, False]
    candidates.passes(0.2)
    await candidates.look(1)
    assert candidates.each[1].leads
    # The former one was asleep: it learns at its next look, and could do nothing before.
    with pytest.raises(UnavailableError, match="another one may lead: it does not act"):
        candidates.each[0].require_sure()
    candidates.each[1].require_sure()
    assert await candidates.look(0) == [False, True]
    assert [each.runs for each in candidates.loops] == [False, True]


async def test_a_gateway_that_takes_long_to_take_up_keeps_its_lease(
    candidates: Candidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is slow: else two gateways would replace one another for ever, and none would lead."""
    monkeypatch.setattr(leadership, "RENEW_S", 0.01)
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        began.set()
        await go_on.wait()

    def renewals() -> int:
        return candidates.ledgers[1].lead("another", "").renewals

    monkeypatch.setattr(candidates.loops[0], "resume", slow)
    looking = asyncio.create_task(candidates.each[0]._look())
    await began.wait()
    for _ in range(4):
        candidates.passes(TTL_S / 2)
        before = renewals()
        while renewals() == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await candidates.look(1) == [False, False]
    go_on.set()
    await looking
    assert [each.leads for each in candidates.each] == [True, False]
    candidates.each[0].require_sure()


async def test_a_gateway_acts_while_it_takes_up_what_was_going_on(
    candidates: Candidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An incident is given up then, or a recovery begun: its ranks are to be stopped."""
    leads = candidates.each[0]
    with pytest.raises(UnavailableError, match="does not act"):
        leads.require_sure()
    found = list[bool]()

    async def resume() -> None:
        leads.require_sure()
        found.append(leads.leads)
        candidates.passes(TTL_S)
        with pytest.raises(UnavailableError, match="does not act"):
            leads.require_sure()

    monkeypatch.setattr(candidates.loops[0], "resume", resume)
    await candidates.look(0)
    assert found == [False]
    await candidates.look(0)
    leads.require_sure()


async def test_a_leader_that_does_not_reach_the_ledger_acts_no_more(
    candidates: Candidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before another can take its place; once the ledger answers it goes on."""
    await candidates.look(0, 1)
    lead = candidates.ledgers[0].lead

    def away(*_: object) -> Leader:
        raise UnavailableError("the ledger is away")

    monkeypatch.setattr(candidates.ledgers[0], "lead", away)
    for _ in range(49):
        candidates.passes(0.1)
        with pytest.raises(UnavailableError, match="is away"):
            await candidates.look(0)
        candidates.each[0].require_sure()
    candidates.passes(0.11)
    with pytest.raises(UnavailableError, match="has not reached the ledger for 5 s"):
        candidates.each[0].require_sure()
    monkeypatch.setattr(candidates.ledgers[0], "lead", lead)
    assert await candidates.look(0) == [True, False]
    candidates.each[0].require_sure()


async def test_a_gateway_that_is_not_sure_does_nothing_by_itself_nor_for_a_person(
    pair: Pair, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its acts are refused; heartbeats are answered."""
    await kit.running_job()
    async with pair.contexts[0]:
        gateway = pair.apps[0].state.gateway
        await gateway.acts.hold(JOB, None)
        assert kit.acts.calls[-1][0] == "hold"
        monkeypatch.setattr(gateway, "may_act", unsure)
        with pytest.raises(UnavailableError, match="unsure"):
            await gateway.acts.stop(JOB)
        with pytest.raises(UnavailableError, match="unsure"):
            await gateway.releases._acts.free(JOB)
        assert kit.acts.calls[-1][0] == "hold"


def unsure() -> None:
    raise UnavailableError("unsure")


@pytest.mark.parametrize(("renewed", "attempts"), [(True, 1), (False, 2)])
async def test_a_run_on_another_host_lives_as_long_as_it_renews_its_lease(
    kit: Kit, renewed: bool, attempts: int
) -> None:
    """Its process cannot be seen from here: the lease shows whether it is there."""
    await kit.running_job()
    await kit.crash()
    kit.runs.set(f"{JOB}-1#1", RunPhase.RUNNING)
    kit.runs.runs[f"{JOB}-1#1"] = kit.runs.runs[f"{JOB}-1#1"].model_copy(update={"alive": None})
    kit.ledger.take_job(f"{JOB}-1", 1, f"{JOB}-1#1", "elsewhere:7:x", 15)
    for _ in range(5):
        if renewed:
            kit.ledger.renew_job(JOB, "elsewhere:7:x", 15)
        await kit.tick(4)
    (incident,) = kit.incidents()
    assert incident.attempt == attempts


def test_hosts_of_one_name_are_two_gateways(tmp_path: Path) -> None:
    """Made from one image, both are called the same: under one name each would lead beside the other."""
    boots = [tmp_path / "one", tmp_path / "other"]
    boots[0].write_text("6f1d1c60-9c5e-4d0b-8f0a-6b1f5a1f4c11\n")
    boots[1].write_text("0b54c2f2-3d27-4e5c-8f4e-1f2a9f1d7a55\n")
    settings = Settings(home=tmp_path)
    names = [program.own_name(settings, boot) for boot in boots]
    assert names[0] != names[1]
    assert program.own_name(settings, boots[0]) == names[0], "after a restart it is the same"
    assert program.own_name(settings, tmp_path / "none")
