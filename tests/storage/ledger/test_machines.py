import pytest

from holdfast.clock import FakeClock
from holdfast.errors import NoStandbyError, StaleError, UnknownError
from holdfast.models.alert import Finding
from holdfast.models.machine import MachineState, Scope
from holdfast.storage.ledger import Ledger
from tests.storage.ledger.samples import register


def test_new_and_provisioned_machines_become_standbys(ledger: Ledger) -> None:
    """Whether they were announced or not."""
    ledger.add_provisioning(["m1"])
    assert ledger.machine("m1").state is MachineState.PROVISIONING
    (new, nothing), (made, before) = register(ledger, "m0"), register(ledger, "m1")
    assert (new.state, nothing) == (MachineState.STANDBY, None)
    assert (made.state, before and before.state) == (MachineState.STANDBY, MachineState.PROVISIONING)


def test_a_restarted_agent_of_an_active_machine_is_noticed(ledger: Ledger) -> None:
    """The machine stays with its job; the incarnation before tells that its ranks are lost."""
    register(ledger, "m0", "old")
    ledger.claim_standbys("gpt", 1)
    after, before = register(ledger, "m0", "new")
    assert (after.state, after.job, after.incarnation) == (MachineState.ACTIVE, "gpt", "new")
    assert before is not None
    assert before.incarnation == "old"


def test_a_registration_sent_twice_changes_nothing(ledger: Ledger, clock: FakeClock) -> None:
    """Its answer may have been lost."""
    first, _ = register(ledger, "m0")
    clock.advance(1)
    again, before = register(ledger, "m0")
    assert before == first
    assert again == first.model_copy(update={"seen_at": clock.now()})


@pytest.mark.parametrize("state", [MachineState.CORDONED, MachineState.DRAINING])
def test_an_evicted_machine_does_not_come_back_by_registering(ledger: Ledger, state: MachineState) -> None:
    """Only a release brings it back."""
    register(ledger, "m0")
    ledger.set_machine("m0", state=state, cordon_scope=Scope.CLUSTER, cordon_reason="Xid 79")
    machine, _ = register(ledger, "m0", "i2")
    assert (machine.state, machine.cordon_reason) == (state, "Xid 79")
    released = ledger.set_machine("m0", state=MachineState.STANDBY)
    assert (released.cordon_scope, released.cordon_reason, released.job) == (None, None, None)


def test_a_machine_that_was_gone_may_come_back(ledger: Ledger) -> None:
    """A rebooted host is a standby like any other."""
    register(ledger, "m0")
    ledger.set_machine("m0", state=MachineState.GONE)
    assert register(ledger, "m0", "i2")[0].state is MachineState.STANDBY


def test_a_failed_self_check_keeps_a_machine_out_of_the_pool(ledger: Ledger) -> None:
    """A standby has passed its checks."""
    bad = Finding(check="disk", machine="m0", ok=False, detail="1 % free")
    machine, _ = register(ledger, "m0", checks=(bad,))
    assert (machine.state, machine.cordon_scope) == (MachineState.CORDONED, Scope.CLUSTER)
    assert machine.cordon_reason == "self-check failed: disk (1 % free)"
    with pytest.raises(NoStandbyError):
        ledger.claim_standbys("gpt", 1)


def test_a_replaced_incarnation_is_told_so(ledger: Ledger, clock: FakeClock) -> None:
    """Its heartbeat changes nothing."""
    register(ledger, "m0", "old")
    register(ledger, "m0", "new")
    with pytest.raises(StaleError, match=r"'old' was replaced by 'new'"):
        ledger.touch("m0", "old", clock.now() + 9)
    assert ledger.machine("m0").seen_at == clock.now()
    with pytest.raises(UnknownError, match="no machine 'm9'"):
        ledger.touch("m9", "i1", 1.0)


def test_late_heartbeats_do_not_turn_time_back(ledger: Ledger, clock: FakeClock) -> None:
    """The newest word of a machine counts."""
    register(ledger, "m0")
    ledger.touch("m0", "i1", clock.now() + 2)
    assert ledger.touch("m0", "i1", clock.now() + 1).seen_at == clock.now() + 2


def test_standbys_are_claimed_all_or_none(ledger: Ledger) -> None:
    """In natural order, never an excluded one."""
    for n in (10, 2, 1, 0):
        register(ledger, f"m{n}")
    with pytest.raises(NoStandbyError, match=r"needs 4 standby machine\(s\), the pool has 3"):
        ledger.claim_standbys("gpt", 4, excluding=["m1"])
    assert ledger.machines(state=MachineState.ACTIVE) == []
    assert [m.name for m in ledger.claim_standbys("gpt", 2, excluding=["m1"])] == ["m0", "m2"]
    assert [m.name for m in ledger.machines(job="gpt")] == ["m0", "m2"]
    assert [m.name for m in ledger.machines()] == ["m0", "m1", "m2", "m10"]
    assert ledger.claim_standbys("gpt", 0) == []


def test_machines_known_already_are_not_provisioned_again(ledger: Ledger) -> None:
    """Announcing twice does no harm."""
    register(ledger, "m0")
    ledger.add_provisioning(["m0", "m1"])
    ledger.add_provisioning(["m0", "m1"])
    assert [m.state for m in ledger.machines()] == [MachineState.STANDBY, MachineState.PROVISIONING]


def test_a_removed_machine_is_forgotten(ledger: Ledger) -> None:
    """Removing it again is no error; a field that does not exist is one."""
    register(ledger, "m0")
    with pytest.raises(TypeError, match="colour"):
        ledger.set_machine("m0", colour="red")  # type: ignore[call-arg]
    ledger.remove_machine("m0")
    ledger.remove_machine("m0")
    with pytest.raises(UnknownError):
        ledger.machine("m0")
