"""An alert storm against a gateway in its own process: the root is found, and memory stays flat."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.deployments.gateway.intake.correlation_window import PER_JOB
from holdfast.deployments.gateway.intake.deduplicator import PER_INCIDENT
from holdfast.models.agent import Register
from holdfast.models.alert import AlertKind, IncidentClass
from holdfast.models.job import JobSpec, JobState
from holdfast.testing.gateway_kit import start_epoch
from tests.deployments.gateway.test_storm import MACHINES, PER_S, RANKS, storm
from tests.e2e.gateway_process import GatewayProcess, gateway_process
from tests.e2e.waiting import wait_for

JOB = "gpt"
A_MINUTE = pytest.param(60, marks=pytest.mark.timeout(600))
SENDERS = 400
"""Reports under way at once: a fleet's agents send one each."""
GROWTH_BYTES = 64 << 20
"""Half of what the backlog of a second half alone would hold."""


@pytest.mark.thorough
@pytest.mark.parametrize("seconds", [6, A_MINUTE])
async def test_a_storm_does_not_drown_the_root(tmp_path: Path, seconds: int) -> None:
    """300 alerts a second, or as many as the host lets through: one incident, and its evidence has the root."""
    with gateway_process(tmp_path / ".holdfast") as gateway:
        agents = await asyncio.start_server(_healthy, "127.0.0.1")
        address = f"127.0.0.1:{agents.sockets[0].getsockname()[1]}"
        _running_job(gateway, address)
        sender = Sender(gateway)
        await sender.storm(0, PER_S * seconds // 2)
        before = gateway.resident_bytes
        # By now the incident has more cascading failures and more evidence than a person reads.
        root = asyncio.create_task(sender.until_taken(_root()))
        await sender.storm(PER_S * seconds // 2, PER_S * seconds)
        await root
        (incident,) = gateway.ledger.incidents()
        grown = gateway.resident_bytes - before
        agents.close()
    assert incident.incident_class is IncidentClass.JOB_CRASH
    assert sender.answers["suppressed"] > 0
    assert len(incident.alerts) <= PER_INCIDENT + PER_JOB
    assert [alert.machine for alert in incident.alerts if alert.kind is AlertKind.GPU_LOST] == ["m7"]
    assert sum(sender.answers.values()) == PER_S * seconds
    assert sender.answers["NotFiringError"] > 0
    assert grown < GROWTH_BYTES, (before, grown, sender.answers)


def _running_job(gateway: GatewayProcess, address: str) -> None:
    """A job whose machines' agents live."""
    for number in range(MACHINES):
        body = Register(machine=f"m{number}", incarnation="i1", address=address, data_address=address, pid=1)
        gateway.http.post("/v1/agents/register", json=body.model_dump(mode="json")).raise_for_status()
    ledger = gateway.ledger
    ledger.add_job(JobSpec(name=JOB, script="train.py", machines=MACHINES, ranks_per_machine=RANKS), "v1")
    ledger.add_version(JOB, "v1", "key", "first")
    # By slot, as the storm numbers them.
    claimed = {machine.name for machine in ledger.claim_standbys(JOB, MACHINES)}
    assert claimed == {f"m{number}" for number in range(MACHINES)}
    ledger.set_job(JOB, machines=[f"m{number}" for number in range(MACHINES)], state=JobState.RUNNING)
    start_epoch(ledger, JOB)
    wait_for("the gateway knows the job", lambda: gateway.http.get(f"/v1/jobs/{JOB}").json()["epoch"] == 1)


def _root() -> dict[str, Any]:
    return {"kind": "gpu_lost", "job": JOB, "machine": "m7", "at": time.time(), "incarnation": "i1"}


async def _healthy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An agent that answers every request."""
    while await reader.readline() not in (b"\r\n", b""):
        pass
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
    await writer.drain()
    writer.close()


class Sender:
    """Posts alerts over connections that stay open, at most :data:`SENDERS` at once; cheap, so that it keeps pace."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.answers: Counter[str] = Counter()
        self._port = gateway.settings.port
        self._head = f"POST /v1/alerts HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {gateway.secret}\r\n"
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._gate = asyncio.Semaphore(SENDERS)

    async def storm(self, first: int, last: int) -> None:
        """Send alerts of these numbers at the storm's pace; returns when all are answered."""
        begun = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number in range(first, last):
                await asyncio.sleep(max(0.0, begun + (number - first) / PER_S - time.monotonic()))
                await self._gate.acquire()
                now = time.time()
                common = {"job": JOB, "at": now, "incarnation": "i1", "fingerprint": f"alert-{number}"}
                body = common | storm(number, now)
                tasks.create_task(self._one(body))

    async def until_taken(self, body: dict[str, Any]) -> None:
        """Send it again while the gateway asks for that, as agents and Alertmanager do."""
        while True:
            status, _ = await self._post(body)
            if status != 503:
                return
            await asyncio.sleep(0.1)

    async def _one(self, body: dict[str, Any]) -> None:
        try:
            _, answer = await self._post(body)
        finally:
            self._gate.release()
        self.answers[answer.get("outcome") or answer["error"]] += 1

    async def _post(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        content = json.dumps(body).encode()
        request = f"{self._head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        while True:
            try:
                link = (
                    self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
                )
                reader, writer = link
                writer.write(request.encode() + content)
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            except (ConnectionError, asyncio.IncompleteReadError):
                continue  # a connection that idled for too long was closed
            length = int(head.split("content-length:")[1].split()[0])
            answer = json.loads(await reader.readexactly(length))
            if "connection: close" in head:
                writer.close()
            else:
                self._idle.append(link)
            return int(head.split()[1]), answer
