"""One command to many agents at once, with bounded concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TypeVar

from holdfast.agent.client import CONNECT_S, AgentClient
from holdfast.errors import (
    DyingError,
    HoldfastError,
    SilentError,
    StaleError,
    UnauthorizedError,
    UnavailableError,
    UndyingError,
)
from holdfast.models.agent import Fence, PrepareCode, Settled
from holdfast.models.base import SWITCH_S
from holdfast.models.job import Job
from holdfast.models.machine import Machine
from holdfast.operations.context import Context

Answer = TypeVar("Answer")

AT_ONCE = 128
STOP_AT_ONCE = 512
"""Where ranks have time to end, or to leave their training function: each further round would take that time again."""
LONG_AT_ONCE = 1024
"""Of commands that take the machines long, and the caller next to nothing: a further round would take as long again."""
GIVEN_UP_S = 2.0
"""To reach a machine that the gateway has given up: one packet more than a first one that is lost."""
UNDYING_ASKED, DYING_ASKED = 2, 7
"""How often a machine is asked to end what was killed and is stuck in the kernel, or is not; 3 to 8 s each."""
_ASKED = 3
"""Neighbours that a machine may ask for code."""


async def each(
    machines: Iterable[Machine], work: Callable[[Machine], Awaitable[Answer]], at_once: int = AT_ONCE
) -> dict[str, Answer]:
    """Do ``work`` for all ``machines``, ``at_once`` at a time; results by machine name."""
    gate = asyncio.Semaphore(at_once)

    async def one(machine: Machine) -> Answer:
        async with gate:
            return await work(machine)

    listed = list(machines)
    done = await asyncio.gather(*(one(machine) for machine in listed))
    return {machine.name: result for machine, result in zip(listed, done, strict=True)}


async def ask(
    ctx: Context,
    machines: Iterable[Machine],
    command: Callable[[AgentClient, Machine], Awaitable[Answer]],
    *,
    at_once: int = AT_ONCE,
) -> dict[str, Answer | HoldfastError]:
    """Send ``command`` to the agents of ``machines``; return the answer or the error, by machine name.

    A fault on this side is not returned as a machine's error, because a caller would blame the machine for it.

    Raises:
        SettingsError: our secret or certificates cannot be read.
        UnauthorizedError: all of them refuse our secret.
    """

    async def one(machine: Machine) -> Answer | HoldfastError:
        try:
            agent = ctx.agent(machine)
        except UnavailableError as error:
            return error
        try:
            return await command(agent, machine)
        except HoldfastError as error:
            return error

    answers = await each(machines, one, at_once)
    refused = [answer for answer in answers.values() if isinstance(answer, UnauthorizedError)]
    if refused and len(refused) == len(answers):
        raise refused[0]
    return answers


def answered(answers: dict[str, Answer | HoldfastError]) -> dict[str, Answer]:
    """Return the machines that answered, with their answers."""
    return {name: answer for name, answer in answers.items() if not isinstance(answer, HoldfastError)}


def lost(answers: dict[str, Answer | HoldfastError]) -> tuple[str, ...]:
    """Return the machines that are not as they were: no answer, or an agent that restarted."""
    return tuple(
        name for name, answer in answers.items() if isinstance(answer, UnavailableError | StaleError)
    )


def silent(answers: dict[str, Answer | HoldfastError]) -> tuple[str, ...]:
    """Return the machines that sent no answer, not even a refusal: what runs there may run on."""
    return tuple(name for name, answer in answers.items() if isinstance(answer, SilentError))


def all_or_raise(answers: dict[str, Answer | HoldfastError]) -> dict[str, Answer]:
    """Return all answers.

    Raises:
        HoldfastError: the first that failed.
    """
    for answer in answers.values():
        if isinstance(answer, HoldfastError):
            raise answer
    return answered(answers)


def all_but_silent(answers: dict[str, Answer | HoldfastError]) -> dict[str, Answer]:
    """Return all answers; machines that sent none, since they are busy for example, are left out.

    Raises:
        HoldfastError: the first that failed otherwise.
    """
    left_out = silent(answers)
    return all_or_raise({name: answer for name, answer in answers.items() if name not in left_out})


async def settle(
    ctx: Context,
    machines: Iterable[Machine],
    job: str,
    epoch: int,
    *,
    given_up: Collection[str] = (),
    grace_s: float = 0.0,
    keep_s: float = 0.0,
) -> dict[str, Settled | HoldfastError]:
    """Stop and fence ``job`` up to ``epoch``; by machine name, what it holds once nothing of the job runs there.

    Those that the gateway has ``given_up`` are not waited for long. Ranks that handle SIGTERM have ``grace_s``
    seconds to end. Processes that may be kept wait ``keep_s`` for the next epoch.

    A machine is asked twice to end what is stuck in the kernel: a process that is killed gives back the memory of its
    GPU, and tens of gigabytes that are registered with it, before it is gone. One that has no free processor for what
    was killed is no machine at fault: it is asked for as long as a minute.
    """

    async def stop(agent: AgentClient, machine: Machine) -> Settled:
        command = Fence(
            job=job,
            epoch=epoch,
            incarnation=machine.incarnation,
            grace_s=grace_s,
            keep_s=keep_s,
            switch_s=ctx.policy.keep_processes.switch_s if keep_s else SWITCH_S,
        )
        connect_s = GIVEN_UP_S if machine.name in given_up else CONNECT_S
        asked = 1
        while True:
            try:
                return await agent.settle(command, connect_s=connect_s)
            except UndyingError as error:
                if asked >= (DYING_ASKED if isinstance(error, DyingError) else UNDYING_ASKED):
                    raise
                asked += 1

    return await ask(ctx, machines, stop, at_once=STOP_AT_ONCE if grace_s or keep_s else AT_ONCE)


async def prepare_code(
    ctx: Context, job: Job, version: str, machines: Sequence[Machine]
) -> dict[str, HoldfastError | None]:
    """Have a code version of ``job`` checked out on ``machines``; by name, the error if there was one.

    They take it from the job's machines where those have it, so that a recovery does not need S3.
    """
    if not machines:
        return {}
    here = [machine for machine in ctx.ledger.machines(job=job.name) if machine.address]
    place = {machine.name: at for at, machine in enumerate(machines)}

    def neighbours(machine: Machine) -> tuple[str, ...]:
        """Return a few machines, different ones for each machine: an order stays small however large the job is."""
        ring = [here[(place[machine.name] + step) % len(here)] for step in range(min(_ASKED + 1, len(here)))]
        return tuple(other.address for other in ring if other.name != machine.name)[:_ASKED]

    def order(machine: Machine) -> PrepareCode:
        return PrepareCode(
            job=job.name,
            version=version,
            incarnation=machine.incarnation,
            ranks=job.spec.ranks_per_machine,
            neighbours=neighbours(machine),
        )

    return await ask(ctx, machines, lambda agent, machine: agent.prepare_code(order(machine)))
