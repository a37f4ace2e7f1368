"""``holdfast doctor JOB``: what its agents prove, as a table, as JSON, and as an exit status."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.cli import restorable
from holdfast.errors import UnavailableError
from holdfast.models.agent import Prove
from holdfast.models.checkpoint import RemoteCheckpoint, Tier
from holdfast.models.job import JobSpec
from holdfast.models.rehearsal import Problem, Proof, Rehearsal
from tests.cli.conftest import Cli
from tests.cli.fake_gateway import FakeGateway

NEWEST = RemoteCheckpoint(job="gpt", step=10, epoch=1, world_size=2, key="gpt/checkpoints/step-10-e1/")


class Agents:
    """All agents: what is wrong in which tier."""

    wrong: dict[Tier, str]
    asked: list[Prove]
    away = False

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    async def __aenter__(self) -> Agents:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def prove(self, order: Prove) -> list[Rehearsal]:
        if self.away:
            raise UnavailableError("agent at 127.0.0.1:1: connection refused")
        self.asked.append(order)
        wrong = self.wrong.get(order.tier)
        proof = Proof.of([Problem(path="loader.buffer", wrong=wrong)] if wrong else [])
        known = {
            "job": order.job,
            "machine": "m0",
            "tier": order.tier,
            "step": order.step or 12,
            "proof": proof,
        }
        ranks = (None,) if order.key else order.ranks or (1,)
        return [Rehearsal.model_validate(known | {"rank": rank}) for rank in ranks]


@pytest.fixture
def agents(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> type[Agents]:
    gateway.add_job(JobSpec(name="gpt", script="train.py", machines=1, ranks_per_machine=1))

    Agents.wrong, Agents.asked, Agents.away = {}, [], False
    monkeypatch.setattr(restorable, "AgentClient", Agents)
    monkeypatch.setattr(restorable, "_newest", lambda _: NEWEST)
    return Agents


def test_everything_is_proven(cli: Cli, agents: type[Agents]) -> None:
    """The ranks' shards, the copies, and the newest checkpoint in S3."""
    result = cli("doctor", "gpt")
    assert result.status == 0, result.err
    assert "3 proven." in result.out
    assert {order.tier for order in agents.asked} == {Tier.MEMORY, Tier.PEER, Tier.S3}
    assert [order.key for order in agents.asked if order.key] == [NEWEST.key]


def test_what_would_not_come_back_is_named(cli: Cli, agents: type[Agents]) -> None:
    """With its path, and status 1."""
    agents.wrong[Tier.S3] = "no file has its bytes"
    result = cli("doctor", "gpt")
    assert result.status == 1
    assert "loader.buffer: no file has its bytes" in result.out
    assert "1 of 3 would not come back" in result.out
    rows = json.loads(cli("doctor", "gpt", "--json").out)
    assert {row["tier"]: row["outcome"] for row in rows} == {
        "memory": "proven",
        "peer": "proven",
        "s3": "failed",
    }


def test_a_machine_that_does_not_answer_is_not_tested(cli: Cli, agents: type[Agents]) -> None:
    """No failure: nothing is known."""
    agents.away = True
    result = cli("doctor", "gpt")
    assert result.status == 0
    assert "connection refused" in result.out
    assert "0 proven, 2 not tested." in result.out


def test_an_unknown_job_is_an_error(cli: Cli, agents: type[Agents]) -> None:
    """In the gateway's words."""
    result = cli("doctor", "gtp")
    assert result.status == 1
    assert "job 'gtp' is unknown" in result.err


def test_a_job_without_machines_is_an_error(cli: Cli, gateway: FakeGateway) -> None:
    """With what to do instead."""
    job = gateway.add_job(JobSpec(name="gone", script="train.py", machines=1, ranks_per_machine=1))
    gateway.jobs["gone"] = job.model_copy(update={"machines": ()})
    result = cli("doctor", "gone")
    assert result.status == 1
    assert "holdfast checkpoints verify gone" in result.err
