"""The services of playbooks' steps over a scripted cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.clock import FakeClock
from holdfast.operations.context import Context
from holdfast.policies.config.policy import Policy
from holdfast.testing.gateway_kit import Kit
from holdfast.testing.people import Interrupted
from holdfast.testing.scripted_agent import ScriptedAgent
from holdfast.testing.scripted_supply import ScriptedDriver, ScriptedStore
from holdfast.testing.world import World


class TickingClock(FakeClock):
    """The kit's clock, a little later at every look: a caller that waits for a deadline reaches it."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        self._clock.advance(0.0005)
        return self._clock.now()

    def monotonic(self) -> float:
        """Return seconds that grow, whatever the wall clock is set to."""
        self._clock.advance(0.0005)
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Advance."""
        await self._clock.sleep(seconds)


class ScriptedContext(Context):
    """The steps' services, with scripted agents."""

    def __init__(self, kit: Kit, world: World, policy: Policy) -> None:
        super().__init__(kit.settings, TickingClock(kit.clock))
        self.__dict__ |= {
            "ledger": kit.ledger,
            "policy": policy,
            "driver": ScriptedDriver(world),
            "store": ScriptedStore(world),
        }
        self._world, self._kit = world, kit

    def changed_lines(self, job: str, versions: tuple[str, str], file: str) -> Sequence[tuple[int, int]]:
        """Return the lines that the scenario lists."""
        return [(first, last) for first, last in self._world.changed.get(file, ())]

    def agent(self, machine: Any) -> Any:
        """Return the scripted agent."""
        agent = ScriptedAgent(self._world, machine)
        return Interrupted(agent, self._world, self._kit) if self._world.acts_at else agent
