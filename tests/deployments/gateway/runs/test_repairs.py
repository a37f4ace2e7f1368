"""Repairs that were ordered are begun by the gateway; machines under repair join no pool by themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.errors import RefusedError
from holdfast.models.machine import MachineState
from holdfast.models.repair import Ask, Repair, RepairState, Step, StepState
from holdfast.policies.config.policy import Policy
from holdfast.testing.gateway_kit import Kit


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    """A gateway of a site that repairs, with a cordoned machine."""
    file = tmp_path / "policy.yaml"
    file.write_text("repair: {enabled: true}\n")
    made = Kit(tmp_path, policy=Policy.load(file))
    await made.register("m0")
    made.ledger.set_machine("m0", state=MachineState.CORDONED)
    yield made
    await made.close()


def ordered(kit: Kit) -> Repair:
    return kit.ledger.open_repair("m0", None, kit.ledger.machine("m0").incarnation, Ask.RESET_GPU, "Xid 119")


async def test_each_repair_gets_one_run_and_another_when_that_died(kit: Kit) -> None:
    """While its run has time it is left alone; the next run has another key."""
    repair = ordered(kit)
    for _ in range(3):
        await kit.gateway.repairs.tick()
    assert kit.runs.started == [("repair-machine", {"repairing": {"repair": repair.id}})]
    kit.ledger.take_repair(repair.id, "run")
    kit.ledger.begin_step(repair.id, "run", Step.RESET_GPU, "x", 60)
    await kit.gateway.repairs.tick()
    assert len(kit.runs.started) == 1
    kit.clock.advance(200)
    await kit.gateway.repairs.tick()
    await kit.gateway.repairs.tick()
    assert len(kit.runs.started) == 2


async def test_a_machine_under_repair_waits_when_it_registers(kit: Kit) -> None:
    """Only its repair lets it stand by."""
    repair = ordered(kit)
    kit.ledger.take_repair(repair.id, "run")
    kit.ledger.begin_step(repair.id, "run", Step.RETURN, "x", 60)
    await kit.register("m0", "i2")
    assert kit.ledger.machine("m0").state is MachineState.PROVISIONING
    kit.ledger.end_step(repair.id, "run", StepState.WORKED, "", "i2")
    kit.ledger.begin_step(repair.id, "run", Step.ADMIT, "x", 60)
    done = kit.ledger.admit_repaired(repair.id, "run", "all passed")
    assert (done.state, done.steps[-1].state) == (RepairState.REPAIRED, StepState.WORKED)
    assert kit.ledger.machine("m0").state is MachineState.STANDBY


async def test_one_that_restarted_after_its_checks_does_not_stand_by(kit: Kit) -> None:
    """Another life was checked."""
    repair = ordered(kit)
    kit.ledger.take_repair(repair.id, "run")
    kit.ledger.begin_step(repair.id, "run", Step.RETURN, "x", 60)
    await kit.register("m0", "i2")
    kit.ledger.end_step(repair.id, "run", StepState.WORKED, "", "i2")
    await kit.register("m0", "i3")
    kit.ledger.begin_step(repair.id, "run", Step.ADMIT, "x", 60)
    with pytest.raises(RefusedError, match="restarted since"):
        kit.ledger.admit_repaired(repair.id, "run", "")
    assert kit.ledger.machine("m0").state is MachineState.PROVISIONING


async def test_release_ends_a_repair_but_not_a_step_of_it(kit: Kit) -> None:
    """A person has the last word, and no job gets a machine whose GPUs are being reset."""
    repair = ordered(kit)
    kit.ledger.take_repair(repair.id, "run")
    kit.ledger.begin_step(repair.id, "run", Step.RESET_GPU, "x", 60)
    with pytest.raises(RefusedError, match="reset_gpu, over in 90 s"):
        kit.ledger.cancel_repairs("m0", "ann released it")
    kit.ledger.end_step(repair.id, "run", StepState.WORKED, "")
    kit.ledger.cancel_repairs("m0", "ann released it")
    assert kit.ledger.repair(repair.id).summary == "cancelled: ann released it"


async def test_nothing_is_begun_where_repairs_are_off(tmp_path: Path) -> None:
    """The default of the local driver."""
    kit = Kit(tmp_path)
    await kit.register("m0")
    ordered(kit)
    await kit.gateway.repairs.tick()
    assert kit.runs.started == []
    await kit.close()
