"""A batch that no rank can read, with real ranks: its position is reported, and a later start skips it."""

from __future__ import annotations

import pytest

from holdfast.agent.client import AgentClient
from holdfast.models.alert import AlertKind
from tests.agent.gateway import events, until
from tests.agent.scripts import fence
from tests.agent.site import AgentProcess

pytestmark = [pytest.mark.e2e, pytest.mark.torch]

READS = """
from holdfast.session.session import Session
session = Session()
for step in range(1, 7):
    if session.skips(step):
        print("skipped", step, flush=True)
    elif step == 4:
        raise OSError("record 4711: bad CRC")
    session.step(step, loss=1.0)
"""


async def test_where_it_fell_is_reported_and_passed_over_when_asked(torch_agent: AgentProcess) -> None:
    """The step is the rank's own, not the newest that the gateway heard of; without the order it falls there again."""
    agent, gateway = torch_agent, torch_agent.gateway
    client: AgentClient = agent.client
    agent.script("batch", READS)
    await client.start(agent.start("batch"))
    (first, second) = until(
        lambda: found if len(found := gateway.alerts(AlertKind.RANK_EXIT, "batch")) == 2 else ()
    )
    assert (first.evidence["step"], second.evidence["step"]) == (3, 3)
    assert "train.py:8" in first.evidence["user_frame"]
    await client.fence(fence(agent, "batch"))

    await client.start(agent.start("batch", epoch=2, skip_steps=(4,)))
    until(lambda: {rank for report in events(gateway, "batch") for rank in report.done} == {0, 1})
    assert "skipped 4" in agent.log("batch", 0, 2)
    assert "skipped 4" in agent.log("batch", 1, 2)
    await client.fence(fence(agent, "batch", 2))
