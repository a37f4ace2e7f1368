"""One command to many agents at once, with bounded concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from holdfast.agent.client import AgentClient
from holdfast.errors import HoldfastError, StaleError, UnavailableError
from holdfast.models.machine import Machine
from holdfast.tasks.context import Context

Answer = TypeVar("Answer")

AT_ONCE = 128


async def ask(
    ctx: Context,
    machines: Iterable[Machine],
    command: Callable[[AgentClient, Machine], Awaitable[Answer]],
) -> dict[str, Answer | HoldfastError]:
    """Send ``command`` to the agents of ``machines``; by machine name, the answer or the error."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(machine: Machine) -> Answer | HoldfastError:
        async with gate:
            try:
                return await command(ctx.agent(machine), machine)
            except HoldfastError as error:
                return error

    listed = list(machines)
    answers = await asyncio.gather(*(one(machine) for machine in listed))
    return {machine.name: answer for machine, answer in zip(listed, answers, strict=True)}


def answered(answers: dict[str, Answer | HoldfastError]) -> dict[str, Answer]:
    """Those that answered."""
    return {name: answer for name, answer in answers.items() if not isinstance(answer, HoldfastError)}


def lost(answers: dict[str, Answer | HoldfastError]) -> tuple[str, ...]:
    """Machines that are not what they were: no answer, or an agent that started anew."""
    return tuple(
        name for name, answer in answers.items() if isinstance(answer, UnavailableError | StaleError)
    )


def all_or_raise(answers: dict[str, Answer | HoldfastError]) -> dict[str, Answer]:
    """All answers.

    Raises:
        HoldfastError: the first that failed.
    """
    for answer in answers.values():
        if isinstance(answer, HoldfastError):
            raise answer
    return answered(answers)
