from __future__ import annotations

import httpx
import pytest

from holdfast.deployments.gateway.detectors.probe import HttpProber, probe_all
from holdfast.deployments.gateway.metrics import Metrics
from holdfast.models.machine import Machine, MachineState
from holdfast.policies.config.policy import Policy

MACHINE = Machine(name="m0", state=MachineState.ACTIVE, incarnation="i1", address="127.0.0.1:9")


def _prober(answer: httpx.Response | Exception, asked: list[str]) -> HttpProber:
    def respond(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        if isinstance(answer, Exception):
            raise answer
        return answer

    http = httpx.AsyncClient(transport=httpx.MockTransport(respond))
    return HttpProber(http, Policy.load().gateway, Metrics())


async def test_agent_that_answers_lives() -> None:
    """One answer is enough."""
    asked: list[str] = []
    probe = await _prober(httpx.Response(200, json={"machine": "m0"}), asked).probe(MACHINE)
    assert probe.alive
    assert asked == ["http://127.0.0.1:9/healthz"]


@pytest.mark.parametrize(
    ("answer", "sure"),
    [
        (httpx.ConnectError("refused"), True),
        (httpx.ReadTimeout("slow"), False),
        (httpx.Response(200, json={"machine": "m7"}), True),
    ],
)
async def test_failure_is_confirmed(answer: httpx.Response | Exception, sure: bool) -> None:
    """A refused connection, silence and another server's answer are each asked for twice."""
    asked: list[str] = []
    probe = await _prober(answer, asked).probe(MACHINE)
    assert (probe.alive, probe.sure, len(asked)) == (False, sure, 2)


async def test_machine_without_an_address_is_not_alive() -> None:
    """It never registered."""
    prober = _prober(httpx.Response(200), [])
    (probe,) = await probe_all(prober, [MACHINE.model_copy(update={"address": ""})])
    assert not probe.alive
