"""How a playbook learns that every rank made a step, without asking a thousand machines over and over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import HoldfastError, RecoveryError
from holdfast.models.agent import JobOnMachine, RankPhase, RankState
from holdfast.models.job import JobSpec
from holdfast.models.machine import Machine
from holdfast.operations import fleet, launch
from holdfast.operations.context import Context
from holdfast.settings import Settings
from holdfast.tasks.context import use
from tests.storage.ledger.samples import register

MACHINES = 100


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    """A job of a hundred machines whose first epoch has just begun."""
    ctx = Context(Settings(home=tmp_path))
    ctx.ledger.create()
    names = [f"m{number}" for number in range(MACHINES)]
    for name in names:
        register(ctx.ledger, name)
    spec = JobSpec(name="gpt", script="t.py", machines=MACHINES, ranks_per_machine=1)
    ctx.ledger.add_job(spec, "v1")
    ctx.ledger.set_job("gpt", machines=tuple(names))
    ctx.ledger.next_epoch("gpt")
    use(ctx)
    yield ctx
    use(None)


class Fleet:
    """Says of each machine what ``rank`` says; notes who was asked, look by look."""

    def __init__(self, rank: Callable[[str, int], dict[str, Any]]) -> None:
        self.looks: list[list[str]] = []
        self._rank = rank

    async def ask(
        self, _ctx: Context, machines: Iterable[Machine], _command: object
    ) -> dict[str, JobOnMachine | HoldfastError]:
        asked = [machine.name for machine in machines]
        self.looks.append(asked)
        return {name: self._state(name) for name in asked}

    def _state(self, name: str) -> JobOnMachine:
        rank = RankState(**{"rank": int(name[1:]), "pid": 1} | self._rank(name, len(self.looks)))
        return JobOnMachine(job="gpt", epoch=1, ranks=(rank,))


async def test_a_few_are_asked_until_one_made_a_step(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then all that are left, and those only."""
    late = "m99"

    def rank(name: str, look: int) -> dict[str, Any]:
        stepped = look >= 3 and (name != late or look >= 5)
        return {"phase": RankPhase.RUNNING, "steps_done": int(stepped)}

    told = Fleet(rank)
    monkeypatch.setattr(fleet, "ask", told.ask)
    await launch.first_steps(ctx, "gpt", 1, 60.0)
    assert [len(asked) for asked in told.looks] == [32, 32, 32, 100, 1]
    assert told.looks[-1] == [late]


async def test_one_that_fails_among_those_that_are_not_asked_is_found(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are asked now and then."""

    def rank(name: str, _look: int) -> dict[str, Any]:
        failed = {"phase": RankPhase.EXITED, "exit_code": 3, "steps_done": 0}
        return failed if name == "m77" else {"phase": RankPhase.RUNNING, "steps_done": 0}

    told = Fleet(rank)
    monkeypatch.setattr(fleet, "ask", told.ask)
    with pytest.raises(RecoveryError, match="rank 77 ended with status 3"):
        await launch.first_steps(ctx, "gpt", 1, 600.0)
    assert len(told.looks[-1]) == MACHINES
