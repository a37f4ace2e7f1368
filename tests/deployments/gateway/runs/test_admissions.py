"""Machines that register wait for their delivery checks, which the gateway asks for at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.models.machine import MachineState
from holdfast.policies.config.policy import Policy
from holdfast.testing.gateway_kit import Kit


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    """A gateway whose machines wait."""
    file = tmp_path / "policy.yaml"
    file.write_text("standby: {admission: true}\n")
    made = Kit(tmp_path, policy=Policy.load(file))
    yield made
    await made.close()


async def look(kit: Kit, seconds: float) -> list[list[str]]:
    """Machines of the checks that were asked for, after ``seconds``."""
    kit.clock.advance(seconds)
    await kit.gateway.site.refresh()
    await kit.gateway.admissions.tick()
    assert {name for name, _ in kit.runs.started} <= {"admit-machine"}
    return [sent["admission"]["machines"] for _, sent in kit.runs.started]  # type: ignore[index]


async def test_those_that_come_together_are_checked_together(kit: Kit) -> None:
    """One run for both, once both have come; none for them again."""
    await kit.register("m0")
    kit.clock.advance(0.5)
    await kit.register("m1")
    assert kit.ledger.machine("m0").state is MachineState.PROVISIONING
    assert await look(kit, 0.6) == []
    assert await look(kit, 0.6) == [["m0", "m1"]]
    assert await look(kit, 60.0) == [["m0", "m1"]]


async def test_key_of_many_that_come_together_stays_short(kit: Kit) -> None:
    """Prefect's PostgreSQL indexes it, and refuses some thousand bytes; other lives have another key."""
    for number in range(40):
        await kit.register(f"m{number}", f"{'a' * 200}{number}")
    assert [len(names) for names in await look(kit, 2.0)] == [40]
    (first,) = kit.runs.runs
    assert len(first) < 100
    for number in range(40):
        await kit.register(f"m{number}", f"{'b' * 200}{number}")
    assert [len(names) for names in await look(kit, 2.0)] == [40, 40]


async def test_a_new_incarnation_is_checked_again(kit: Kit) -> None:
    """Findings about the former one do not count."""
    await kit.register("m0")
    await look(kit, 2.0)
    await kit.register("m0", "i2")
    assert await look(kit, 2.0) == [["m0"], ["m0"]]


async def test_one_that_is_still_starting_is_left_alone(kit: Kit) -> None:
    """Released again, it has the address of its former life until it registers."""
    await kit.register("m0")
    await look(kit, 2.0)
    kit.ledger.set_machine("m0", state=MachineState.PROVISIONING)
    assert await look(kit, 2.0) == [["m0"]]
    await kit.restart()
    assert await look(kit, 2.0) == [["m0"]]


async def test_while_prefect_is_away_they_wait(kit: Kit) -> None:
    """They are asked for when it answers."""
    await kit.register("m0")
    kit.runs.away = True
    assert await look(kit, 2.0) == []
    kit.runs.away = False
    assert await look(kit, 2.0) == [["m0"]]


async def test_without_the_rule_they_stand_by_at_once(tmp_path: Path) -> None:
    """The default leaves the local driver's machines out."""
    kit = Kit(tmp_path)
    await kit.register("m0")
    assert kit.ledger.machine("m0").state is MachineState.STANDBY
    assert await look(kit, 2.0) == []
    await kit.close()
