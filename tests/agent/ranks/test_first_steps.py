"""How an agent detects that the ranks of an epoch made their first step."""

from __future__ import annotations

import asyncio
import time

import pytest

from holdfast.agent import commands
from holdfast.errors import SettingsError, StaleError, UnknownError
from holdfast.models.agent import JobOnMachine
from tests.agent.gateway import eventually
from tests.agent.scripts import SLEEP, STEPS, fence
from tests.agent.site import AgentProcess

pytestmark = pytest.mark.e2e


async def test_first_steps_are_waited_for(agent: AgentProcess) -> None:
    """The answer comes when all ranks made one, or when the patience ends; a later question is answered at once."""
    agent.script(
        "first", STEPS + "while not os.path.exists(f'go{rank}'): time.sleep(0.01)\nstep(1)\n" + SLEEP
    )
    async with agent.client as client:
        await client.start(agent.start("first"))
        soon = await client.first_steps("first", 1, patience_s=0.2)
        assert [state.steps_done for state in soon.ranks] == [0, 0]

        async def both() -> JobOnMachine:
            """Ask again whenever the agent's patience ends, which a host that stands still outlasts."""
            while True:
                began = time.monotonic()
                found = await client.first_steps("first", 1, patience_s=60.0)
                if all(state.steps_done for state in found.ranks):
                    return found
                assert time.monotonic() - began > commands._PATIENCE_S / 2, "it answered too early"

        waiting = asyncio.create_task(both())
        checkout = agent.folder / "code" / "first" / agent.version("first")
        (checkout / "go0").touch()

        async def stepped() -> int:
            (run,) = [run for run in (await client.state()).jobs if run.job == "first"]
            return run.ranks[0].steps_done

        await eventually(stepped)
        assert not waiting.done()
        (checkout / "go1").touch()
        for asked in (waiting, client.first_steps("first", 1, patience_s=60.0)):
            assert [state.steps_done for state in (await asked).ranks] == [1, 1]
        with pytest.raises(StaleError):
            await client.first_steps("first", 2, patience_s=60.0)
        with pytest.raises(UnknownError):
            await client.first_steps("other", 1, patience_s=60.0)
        with pytest.raises(SettingsError, match="patience_s=SECONDS"):
            await client.first_steps("first", 1, patience_s=-1.0)
        await client.fence(fence(agent, "first"))


async def test_a_rank_that_fails_ends_the_wait_for_first_steps(agent: AgentProcess) -> None:
    """The other may wait for it for ever."""
    agent.script("fails", STEPS + "if rank == 1: raise SystemExit(7)\n" + SLEEP)
    async with agent.client as client:
        await client.start(agent.start("fails"))
        found: list[int | None] = []
        while 7 not in found:
            found = [
                state.exit_code for state in (await client.first_steps("fails", 1, patience_s=10.0)).ranks
            ]
        assert found == [None, 7]
        await client.fence(fence(agent, "fails"))
