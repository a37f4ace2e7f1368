"""People who act in the middle of a recovery: when a command comes to the first agent that it goes to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.testing.gateway_kit import Kit
from holdfast.testing.world import World


class Interrupted:
    """An agent before whose answer a person does what the scenario's ``acts_at`` has for the command."""

    def __init__(self, agent: Any, world: World, kit: Kit) -> None:
        self._agent, self._world, self._kit = agent, world, kit

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        command = getattr(self._agent, name)

        async def after_people(*args: Any, **given: Any) -> Any:
            at = args[0].check if name == "diagnose" else name
            if (wanted := self._world.acts_at.pop(str(at), None)) is not None:
                answer = await self._kit.http.post(f"/v1/{wanted['request']}", json=wanted.get("body"))
                self._world.answers_to_people.append(str(answer.json()))
            return await command(*args, **given)

        return after_people
