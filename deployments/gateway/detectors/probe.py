"""Probe whether an agent still answers, when heartbeats are missing or peers report a lost connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

import httpx

from holdfast.agent.uplink.contact import asked_by_gateway
from holdfast.deployments.gateway.metrics import Metrics
from holdfast.models.base import Frozen
from holdfast.models.machine import Machine
from holdfast.policies.config.policy import GatewayPolicy
from holdfast.refusal import is_silence, reason_of
from holdfast.secret import Keys, keys
from holdfast.tls import PLAIN, Tls

CONFIRM_AFTER_S = 0.05
AT_ONCE = 128
_REFUSED = "connection refused"
_ANOTHER = "another process answers at its address"
_SURE = frozenset({_REFUSED, _ANOTHER})


class Probe(Frozen):
    """The result of probing one agent."""

    machine: str
    alive: bool
    detail: str
    sure: bool = True
    """When not alive, True: nothing listens there. False: it did not answer in time, which a busy host explains too."""


class Prober(Protocol):
    """Asks agents."""

    async def probe(self, machine: Machine) -> Probe:
        """Probe one agent; takes at most a few timeouts."""
        ...


class HttpProber:
    """GET /healthz. One failure is confirmed by the next: a refused connection at once, silence by waiting."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        policy: GatewayPolicy,
        metrics: Metrics,
        tls: Tls = PLAIN,
        secret: str | Keys = "",
    ) -> None:
        """Make a prober; with ``secret`` agents recognize the gateway, and count its probe as a sign of life."""
        self._tls = tls
        self._secret = keys(secret) if secret else None
        self._http = http
        self._policy = policy
        self._metrics = metrics
        self.term: Callable[[], int] = lambda: 0
        """Of the gateway that asks, where there are several."""

    async def probe(self, machine: Machine) -> Probe:
        """Ask up to ``probe_attempts`` times (policy); the first answer proves that the agent is alive."""
        detail, sure = "it has no address", True
        for attempt in range(self._policy.probe_attempts if machine.address else 0):
            if attempt:
                await asyncio.sleep(CONFIRM_AFTER_S)
            failure = await self._ask(machine)
            if failure is None:
                self._metrics.probes.labels("alive").inc()
                return Probe(machine=machine.name, alive=True, detail="answers")
            detail, sure = failure, failure in _SURE
        self._metrics.probes.labels("dead").inc()
        return Probe(machine=machine.name, alive=False, detail=detail, sure=sure)

    async def _ask(self, machine: Machine) -> str | None:
        """Return None when the agent of this machine answered, else why not."""
        try:
            self._tls.refresh()
            answer = await self._http.get(
                f"{self._tls.scheme}://{machine.address}/healthz",
                timeout=self._policy.probe_timeout_s,
                headers=asked_by_gateway(self._secret, self.term()) if self._secret else None,
                extensions=self._tls.to_agent(),
            )
        except httpx.ConnectError as error:
            # Without a way to its host nothing is known of it.
            if is_silence(error):
                return reason_of(error)
            # Something listens there, but with a certificate that is not trusted: that is no sign of death.
            return f"{error}" if "certificate" in str(error).lower() else _REFUSED
        except httpx.HTTPError as error:
            return f"no answer within {self._policy.probe_timeout_s:g} s ({type(error).__name__})"
        return None if _is(answer, machine) else _ANOTHER


def _is(answer: httpx.Response, machine: Machine) -> bool:
    """Return whether the answer is the machine's: a port is soon reused, so one that names another does not count."""
    try:
        body = answer.json()
    except ValueError:
        return True
    named = body.get("machine") if isinstance(body, dict) else None
    return named is None or named == machine.name


async def probe_all(prober: Prober, machines: Iterable[Machine]) -> list[Probe]:
    """Ask many at once, at most :data:`AT_ONCE` at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(machine: Machine) -> Probe:
        async with gate:
            return await prober.probe(machine)

    return list(await asyncio.gather(*(one(machine) for machine in machines)))
