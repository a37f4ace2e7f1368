"""Two gateways over one ledger: one acts, the other stands by and takes over."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from holdfast.clock import SystemClock
from holdfast.deployments.gateway.app import create_app
from holdfast.deployments.gateway.leadership import TTL_S
from holdfast.deployments.gateway.runs import Phase
from holdfast.errors import UnavailableError
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
        return self.ledgers[0].lead("nobody", "", 0).holder


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
    # It resigned at its end, so that nobody waits.
    taken = pair.ledgers[0].lead("g0", "", TTL_S)
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
        assert pair.ledgers[1].lead("g1", "", TTL_S).holder == "g1"
        with pytest.raises(UnavailableError, match="gateway g0 does not lead: g1 does"):
            gateway.site.ledger.set_job(JOB, machines=[])


@pytest.mark.parametrize(("renewed", "attempts"), [(True, 1), (False, 2)])
async def test_a_run_on_another_host_lives_as_long_as_it_renews_its_lease(
    kit: Kit, renewed: bool, attempts: int
) -> None:
    """Its process cannot be seen from here: the lease says whether it is there."""
    await kit.running_job()
    await kit.crash()
    kit.runs.set(f"{JOB}-1#1", Phase.RUNNING)
    kit.runs.runs[f"{JOB}-1#1"] = kit.runs.runs[f"{JOB}-1#1"].model_copy(update={"alive": None})
    kit.ledger.take_job(f"{JOB}-1", 1, f"{JOB}-1#1", "elsewhere:7:x", 15)
    for _ in range(5):
        if renewed:
            kit.ledger.renew_job(JOB, "elsewhere:7:x", 15)
        await kit.tick(4)
    (incident,) = kit.incidents()
    assert incident.attempt == attempts
