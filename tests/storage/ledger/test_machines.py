import pytest

from holdfast.clock import FakeClock
from holdfast.errors import NoStandbyError, RefusedError, StaleError, UnknownError
from holdfast.models.alert import Finding, IncidentClass
from holdfast.models.job import JobSpec, JobState
from holdfast.models.machine import MachineState, Scope
from holdfast.models.repair import Ask, Repair, RepairState, Step, StepState
from holdfast.storage.ledger import Ledger
from tests.storage.ledger.samples import incident, register, running_job


def test_new_and_provisioned_machines_become_standbys(ledger: Ledger) -> None:
    """Whether they were announced or not."""
    ledger.add_provisioning(["m1"])
    assert ledger.machine("m1").state is MachineState.PROVISIONING
    (new, nothing), (made, before) = register(ledger, "m0"), register(ledger, "m1")
    assert (new.state, nothing) == (MachineState.STANDBY, None)
    assert (made.state, before and before.state) == (MachineState.STANDBY, MachineState.PROVISIONING)


def test_a_restarted_agent_of_an_active_machine_is_noticed(ledger: Ledger) -> None:
    """The machine stays with its job; the incarnation before shows that its ranks are lost."""
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


def test_only_the_machine_that_was_found_dead_is_gone(ledger: Ledger) -> None:
    """The process that looked may have slept: another incarnation, another job or an eviction is left as it is."""
    register(ledger, "m0", "old")
    ledger.claim_standbys("gpt", 1)
    assert not ledger.lose("m0", "other", "gpt", "dead")
    assert not ledger.lose("m0", "old", "bert", "dead")
    assert ledger.machine("m0").state is MachineState.ACTIVE
    assert ledger.lose("m0", "old", "gpt", "dead")
    lost = ledger.machine("m0")
    assert (lost.state, lost.job, lost.cordon_reason) == (MachineState.GONE, None, "dead")
    assert not ledger.lose("m0", "old", None, "again")
    with pytest.raises(UnknownError):
        ledger.lose("m9", "old", "gpt", "dead")


def test_an_unfit_standby_is_cordoned_unless_a_job_has_taken_it(ledger: Ledger) -> None:
    """The job's own watch sees to it then."""
    register(ledger, "m0")
    register(ledger, "m1")
    assert ledger.lose("m0", ledger.machine("m0").incarnation, None, "Xid 79", MachineState.CORDONED)
    assert ledger.machine("m0").state is MachineState.CORDONED
    ledger.claim_standbys("gpt", 1)
    assert not ledger.lose("m1", ledger.machine("m1").incarnation, None, "Xid 79", MachineState.CORDONED)
    assert ledger.machine("m1").job == "gpt"


def test_a_failed_self_check_keeps_a_machine_out_of_the_pool(ledger: Ledger) -> None:
    """A standby has passed its checks."""
    bad = Finding(check="disk", machine="m0", ok=False, detail="1 % free")
    machine, _ = register(ledger, "m0", checks=(bad,))
    assert (machine.state, machine.cordon_scope) == (MachineState.CORDONED, Scope.CLUSTER)
    assert machine.cordon_reason == "self-check failed: disk (1 % free)"
    with pytest.raises(NoStandbyError):
        ledger.claim_standbys("gpt", 1)


def test_heartbeats_of_many_are_noted_together(ledger: Ledger, clock: FakeClock) -> None:
    """That of a replaced incarnation, of a stranger, or one that comes late changes nothing."""
    register(ledger, "m0", "old")
    register(ledger, "m0", "new")
    register(ledger, "m1")
    ledger.touch({})
    now = clock.now()
    ledger.touch({("m0", "old"): now + 9, ("m1", "i1"): now + 2, ("m9", "i1"): now + 2})
    ledger.touch({("m1", "i1"): now + 1})
    assert [machine.seen_at for machine in ledger.machines()] == [now, now + 2]
    ledger.touch({("m1", "i1"): now - 7200})  # the clock was set back
    assert [machine.seen_at for machine in ledger.machines()] == [now, now - 7200]


def test_machines_are_read_together_in_the_order_asked(ledger: Ledger) -> None:
    """However many; a stranger among them is named."""
    for number in range(3):
        register(ledger, f"m{number}")
    names = ["m2", "m0", "m2"]
    assert [machine.name for machine in ledger.machines_named(names)] == names
    assert ledger.machines_named(names)[0] == ledger.machine("m2")
    assert ledger.machines_named([]) == []
    with pytest.raises(UnknownError, match="no machine 'm9'"):
        ledger.machines_named(["m0", "m9"])


def test_machines_are_given_back_together(ledger: Ledger) -> None:
    """One that was evicted meanwhile stays out, one that serves another job there, and none leaves a job that runs."""
    for number in range(4):
        register(ledger, f"m{number}")
    ledger.add_job(JobSpec(name="gpt", script="t.py", machines=3, ranks_per_machine=1), "v1")
    ledger.claim_standbys("gpt", 3)
    ledger.claim_standbys("other", 1)
    ledger.set_machine("m1", state=MachineState.CORDONED, cordon_scope=Scope.CLUSTER)
    with pytest.raises(StaleError, match="job gpt is paused"):
        ledger.give_back(["m0", "m1", "m2"], "gpt")
    ledger.set_job("gpt", state=JobState.DONE)
    ledger.give_back(["m0", "m1", "m2", "m3"], "gpt")
    states = [(machine.state, machine.job) for machine in ledger.machines()]
    standby = (MachineState.STANDBY, None)
    assert states == [standby, (MachineState.CORDONED, "gpt"), standby, (MachineState.ACTIVE, "other")]


def test_machines_are_not_given_back_once_one_of_them_has_a_slot(ledger: Ledger) -> None:
    """A playbook placed what had been claimed: nor is an unfit one of them taken from under its ranks."""
    for number in range(3):
        register(ledger, f"m{number}")
    ledger.add_job(JobSpec(name="gpt", script="t.py", machines=2, ranks_per_machine=1), "v1")
    ledger.claim_standbys("gpt", 3)
    ledger.set_job("gpt", state=JobState.RUNNING, machines=["m0", "m1"])
    for names, unfit in ((["m1", "m2"], []), (["m2"], ["m1"]), ([], ["m1"])):
        with pytest.raises(StaleError, match="job gpt is running"):
            ledger.give_back(names, "gpt", unfit)
    ledger.give_back(["m2"], "gpt")
    assert [machine.name for machine in ledger.machines(state=MachineState.STANDBY)] == ["m2"]


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


def test_only_what_was_withdrawn_is_forgotten_as_retired(ledger: Ledger) -> None:
    """The process that retires a machine may have slept: the one of that name may be another, or serve a job."""
    register(ledger, "m0")
    life = ledger.machine("m0").incarnation
    assert not ledger.remove_retired("m0", life)
    ledger.withdraw("m0")
    ledger.set_machine("m0", incarnation="later@b")
    assert not ledger.remove_retired("m0", "former@a")
    assert ledger.machine("m0").state is MachineState.DRAINING
    assert ledger.remove_retired("m0", "former@b")
    assert ledger.remove_retired("m0", "former@b")
    with pytest.raises(UnknownError):
        ledger.machine("m0")


def test_preferred_standbys_are_claimed_first(ledger: Ledger) -> None:
    """Then the others in their order; a name that does not stand by is no matter."""
    for name in ("m0", "m1", "m2", "m10"):
        register(ledger, name)
    claimed = ledger.claim_standbys("gpt", 3, excluding=["m2"], preferred=["m2", "m10", "m7"])
    assert [machine.name for machine in claimed] == ["m10", "m0", "m1"]


def test_a_location_stays_until_another_is_known(ledger: Ledger) -> None:
    """The driver's is not lost when an agent that knows nothing registers again; the agent's own goes before it."""
    register(ledger, "m0")
    assert ledger.machine("m0").location == {}
    ledger.locate({"m0": {"rack": "r1"}, "nowhere": {"rack": "r2"}})
    assert register(ledger, "m0", "i2")[0].location == {"rack": "r1"}
    assert register(ledger, "m0", "i3", location={"switch": "s1"})[0].location == {"switch": "s1"}
    assert ledger.machines()[0].location == {"switch": "s1"}


def test_a_machine_that_was_brought_back_and_fails_again_is_repaired_again(ledger: Ledger) -> None:
    """In the same incident; the first eviction, repeated after a kill, orders nothing new."""
    register(ledger, "m0")
    running_job(ledger)
    found = incident(ledger, IncidentClass.MACHINE_FAULT)
    ledger.set_machine("m0", state=MachineState.CORDONED)

    def ordered(incarnation: str) -> Repair:
        return ledger.open_repair("m0", found.id, incarnation, Ask.RESTART_MACHINE, "Xid 79")

    first = ordered("i1")
    assert ordered("i1") == first
    ledger.take_repair(first.id, "run")
    ledger.begin_step(first.id, "run", Step.RETURN, "no evidence against it", 10.0)
    ledger.end_step(first.id, "run", StepState.WORKED, "its agent registered", "i2")
    ledger.close_repair(first.id, "run", RepairState.REPAIRED, "it passed")
    assert ordered("i1").id == first.id
    again = ordered("i2")
    assert (again.id != first.id, again.state) == (True, RepairState.OPEN)
    assert ordered("i2") == again


def test_a_release_that_failed_is_undone_unless_the_machine_came(ledger: Ledger) -> None:
    """It may serve a job by then; and one that is in service is not released by a request that came late."""
    for name, came in (("m0", False), ("m1", True)):
        register(ledger, name, "old")
        ledger.set_machine(name, state=MachineState.CORDONED, cordon_scope=Scope.CLUSTER, cordon_reason="x")
        before = ledger.begin_release(name)
        if came:
            register(ledger, name, "new")
            ledger.claim_standbys("gpt", 1)
            with pytest.raises(RefusedError, match="m1 is active"):
                ledger.begin_release(name, again=True)
        ledger.undo_release(before)
    assert (ledger.machine("m0").state, ledger.machine("m0").cordon_reason) == (MachineState.CORDONED, "x")
    assert (ledger.machine("m1").state, ledger.machine("m1").job) == (MachineState.ACTIVE, "gpt")


def test_a_machine_of_a_roles_own_is_its_jobs_until_it_leaves_it(ledger: Ledger) -> None:
    """However it leaves: its next job does not find it in a role."""
    for number in range(5):
        register(ledger, f"m{number}")
    running_job(ledger)
    ledger.set_job("gpt", machines=["m0"])
    ledger.claim_standbys("gpt", 1)
    ledger.claim_standbys("gpt", 4, role="rollout")
    assert [each.name for each in ledger.machines(MachineState.ACTIVE, "gpt", role="")] == ["m0"]
    assert len(ledger.machines(job="gpt")) == 5
    assert ledger.lose("m1", "i1", "gpt", "dead")
    ledger.drain("m2", "i1", Scope.CLUSTER, "Xid 79", "gpt")
    assert ledger.machine("m2").role == "rollout"  # it serves it until its replicas have left
    ledger.cordon("m2", "i1", "gpt")
    ledger.give_back(["m3"], "gpt")
    ledger.let_go("m4", "i1", "gpt")
    assert [each.name for each in ledger.machines(job="gpt")] == ["m0"]
    assert {each.role for each in ledger.machines()} == {""}
    ledger.claim_standbys("gpt", 1, role="cache")
    ledger.set_machine("m3", state=MachineState.STANDBY)
    assert ledger.machine("m3").role == ""
