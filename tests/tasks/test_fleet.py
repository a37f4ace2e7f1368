"""Results of asking many agents: distinguish a machine's own error from one of the asking process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast import secret
from holdfast.agent.client import AgentClient
from holdfast.errors import (
    DyingError,
    RefusedError,
    SettingsError,
    UnauthorizedError,
    UnavailableError,
    UndyingError,
)
from holdfast.models.agent import Fence
from holdfast.models.machine import Machine
from holdfast.operations import fleet
from holdfast.operations.context import Context
from holdfast.settings import Settings
from tests.storage.ledger.samples import register

NAMES = ("m0", "m1", "m2")


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    """Three machines, and the secret that they know."""
    ctx = Context(Settings(home=tmp_path))
    ctx.ledger.create()
    secret.create(tmp_path / "secret")
    for name in NAMES:
        register(ctx.ledger, name)
    return ctx


def refuse(*who: str) -> Callable[[AgentClient, Machine], Awaitable[str]]:
    """Agents of ``who`` know another secret; all others answer with their machine's name."""

    async def command(_: AgentClient, machine: Machine) -> str:
        if machine.name in who:
            raise UnauthorizedError("missing or wrong secret")
        return machine.name

    return command


async def test_an_unreadable_secret_of_ours_is_no_machines_error(ctx: Context, tmp_path: Path) -> None:
    """Else every check would fail on every machine, and accuse them all."""
    (tmp_path / "secret").chmod(0o644)
    with pytest.raises(SettingsError, match="open to others"):
        await fleet.ask(ctx, ctx.ledger.machines(), refuse())


async def test_a_secret_that_all_refuse_is_ours(ctx: Context) -> None:
    """Of several machines that refuse it, one alone is reported; a refusal by all means that ours is wrong."""
    machines = ctx.ledger.machines()
    answers = await fleet.ask(ctx, machines, refuse("m1"))
    assert isinstance(answers["m1"], UnauthorizedError)
    assert fleet.answered(answers) == {"m0": "m0", "m2": "m2"}
    with pytest.raises(UnauthorizedError):
        await fleet.ask(ctx, machines, refuse(*NAMES))
    assert await fleet.ask(ctx, [], refuse()) == {}


@pytest.mark.parametrize("at_once", [1, 2, fleet.LONG_AT_ONCE])
async def test_only_so_many_machines_are_asked_at_once(ctx: Context, at_once: int) -> None:
    """A slow request goes to a thousand machines together: each further round would take as long again."""
    asked, most = 0, 0

    async def command(_: AgentClient, machine: Machine) -> str:
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        for _turn in range(5):
            await asyncio.sleep(0)
        asked -= 1
        return machine.name

    answers = await fleet.ask(ctx, ctx.ledger.machines(), command, at_once=at_once)
    assert answers == {name: name for name in NAMES}
    assert most == min(at_once, len(NAMES))


async def test_machines_whose_ranks_have_time_to_end_are_stopped_together(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two seconds for each of ten rounds are twenty, for which a job that is moved stands."""
    asked: list[int] = []

    async def ask(*_: object, at_once: int) -> dict[str, object]:
        asked.append(at_once)
        return {}

    monkeypatch.setattr(fleet, "ask", ask)
    for grace_s, keep_s in ((0.0, 0.0), (2.0, 0.0), (0.0, 3.0)):
        await fleet.settle(ctx, ctx.ledger.machines(), "gpt", 1, grace_s=grace_s, keep_s=keep_s)
    assert asked == [fleet.AT_ONCE, fleet.STOP_AT_ONCE, fleet.STOP_AT_ONCE]


async def test_errors_of_machines_are_answers(ctx: Context) -> None:
    """One that has no agent, and one that refuses: the others' answers are there."""
    m0, m1, m2 = ctx.ledger.machines()

    async def command(_: AgentClient, machine: Machine) -> str:
        if machine.name == "m1":
            raise RefusedError("no")
        return "yes"

    answers = await fleet.ask(ctx, [m0.model_copy(update={"address": ""}), m1, m2], command)
    assert [type(answers[name]) for name in NAMES] == [UnavailableError, RefusedError, str]


@pytest.mark.parametrize(
    ("error", "slow", "ended"),
    [(UndyingError, 1, True), (UndyingError, 2, False), (DyingError, 6, True), (DyingError, 7, False)],
)
async def test_what_does_not_die_at_once_is_waited_for(
    ctx: Context,
    monkeypatch: pytest.MonkeyPatch,
    error: type[UndyingError],
    slow: int,
    ended: bool,
) -> None:
    """A machine with processes that give back much memory is not lost, nor is one without a free processor for a while.

    One with processes that are stuck in the kernel is.
    """
    asked: list[int] = []

    async def settle(_: AgentClient, command: Fence, **more: float) -> str:
        asked.append(command.epoch)
        if len(asked) <= slow:
            raise error("pid 7")
        return "settled"

    monkeypatch.setattr(AgentClient, "settle", settle)
    answers = await fleet.settle(ctx, ctx.ledger.machines()[:1], "gpt", 7)
    assert asked == [7] * (slow + ended)
    assert bool(fleet.lost(answers)) is not ended
