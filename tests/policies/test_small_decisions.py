"""Small decisions: flight records, approvals, offences, what follows a replay, shared faults."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import LimitError
from holdfast.models.agent import FlightRecord
from holdfast.models.alert import Finding, IncidentClass
from holdfast.models.history import Offence
from holdfast.models.machine import Scope
from holdfast.policies.classify import services
from holdfast.policies.config.ladders import ApprovalPolicy, ApprovalRule
from holdfast.policies.diagnose import flight
from holdfast.policies.diagnose.replay_groups import Next, ReplayOutcome, ReplayVerdict, decide
from holdfast.policies.escalate import approval, code
from holdfast.policies.pool import admission, offences
from tests.policies.make import epoch, job


def record(rank: int, enqueued: int, completed: int, group: str = "0", operation: str = "") -> FlightRecord:
    return FlightRecord(rank=rank, group=group, enqueued=enqueued, completed=completed, operation=operation)


def test_the_rank_that_others_wait_for_is_behind() -> None:
    """Seven are in collective 9, one has not come."""
    records = [record(rank, 9, 8) for rank in range(8) if rank != 5] + [record(5, 8, 8)]
    found = flight.analyse(records, job())
    assert (found.behind, found.suspects) == ((5,), ("m2",))
    assert set(found.waiting) == {0, 1, 2, 3, 4, 6, 7}
    assert found.confidence == 0.9


def test_who_lags_because_it_waits_elsewhere_is_a_victim() -> None:
    """Rank 2 is late in group 0 because it waits in group 1 for rank 3."""
    records = [record(0, 5, 4), record(1, 5, 4), record(2, 4, 4), record(3, 4, 4)]
    records += [record(2, 7, 6, "1"), record(3, 6, 6, "1"), record(4, 5, 4), record(5, 5, 4)]
    found = flight.analyse(records, job())
    assert found.behind == (3,)
    assert found.suspects == ("m1",)


def test_who_lags_and_waits_is_not_accused() -> None:
    """Its own link, or that of the rank before it: the others came further by what they had got already."""
    found = flight.analyse([*(record(rank, 9, 8) for rank in range(7)), record(7, 8, 7)], job())
    assert (found.behind, found.suspects) == ((), ())
    assert "ranks 7 have not come to collective 9" in found.reasons[0]


def test_equal_records_accuse_none() -> None:
    """All in the same collective, or all between two."""
    assert flight.analyse([record(rank, 9, 8) for rank in range(8)], job()).suspects == ()
    assert flight.analyse([record(rank, 8, 8) for rank in range(8)], job()).suspects == ()
    assert flight.analyse([], job()).reasons == ("no rank left a record of its collectives",)


def test_ranks_that_disagree_point_at_the_code() -> None:
    """Different operations under one number."""
    records = [record(rank, 9, 8, operation="nccl:all_reduce") for rank in range(7)]
    found = flight.analyse([*records, record(7, 9, 8, operation="nccl:broadcast")], job())
    assert found.suspects == ()
    assert any("look at the code" in reason for reason in found.reasons)


def test_a_rank_without_a_record_is_suspected_when_the_others_wait() -> None:
    """A stopped process cannot write."""
    found = flight.analyse([record(rank, 9, 8) for rank in range(7)], job())
    assert (found.behind, found.suspects) == ((7,), ("m3",))


def seen(rank: int, started: int | None, completed: int, **more: Any) -> FlightRecord:
    """Of NCCL, in a group of all eight."""
    ranks = tuple(range(8))
    return FlightRecord(
        rank=rank,
        group="0",
        ranks=ranks,
        backend="nccl",
        enqueued=12,
        started=started,
        completed=completed,
        **more,
    )


def test_a_gpu_that_died_with_kernels_queued_is_accused() -> None:
    """Its program issued what all others issued; its GPU never came to what they wait in."""
    found = flight.analyse([seen(rank, 8 if rank == 6 else 9, 8) for rank in range(8)], job())
    assert (found.behind, found.suspects, found.confidence) == ((6,), ("m3",), 0.9)
    assert (
        flight.analyse([seen(rank, None, 8) for rank in range(8)], job()).suspects == ()
    )  # it could be any of them


def test_a_gpu_whose_work_is_never_noted_as_done_is_accused() -> None:
    """It took its part in what the others completed, so it was complete there too: its own driver does not say so."""
    recent = dict.fromkeys(range(6, 13), "all_reduce 4")
    records = [seen(rank, None, 6 if rank == 2 else 8, recent=recent) for rank in range(8)]
    assert flight.analyse(records, job()).suspects == ("m1",)
    # One collective less is no proof: the others may have got all that they need before the link to it broke.
    one_less = [seen(rank, None, 7 if rank == 2 else 8, recent=recent) for rank in range(8)]
    assert flight.analyse(one_less, job()).suspects == ()
    broadcasts = [
        each.model_copy(update={"recent": {7: "broadcast 4", 8: "broadcast 4"}}) for each in records
    ]
    assert flight.analyse(broadcasts, job()).suspects == ()  # its root goes on alone


def test_a_collective_that_never_ends_inside_one_machine_accuses_it_when_others_wait() -> None:
    """Two ranks are in a tensor-parallel collective of their own; the data-parallel groups wait for both."""
    inside = [FlightRecord(rank=rank, group="tp", ranks=(2, 3), enqueued=5, completed=4) for rank in (2, 3)]
    outside = [
        FlightRecord(
            rank=rank, group=f"dp{side}", ranks=ranks, enqueued=3 if rank in {2, 3} else 4, completed=3
        )
        for side, ranks in enumerate(((0, 2, 4, 6), (1, 3, 5, 7)))
        for rank in ranks
    ]
    found = flight.analyse([*inside, *outside], job())
    assert (found.behind, found.suspects) == ((2, 3), ("m1",))
    assert (
        flight.analyse([*inside, *outside], job(8, 1)).suspects == ()
    )  # two machines: either, or what is between


def test_groups_of_one_name_with_different_members_are_two() -> None:
    """`split_group` and counters of each process name them alike."""
    tp = [FlightRecord(rank=rank, group="1", ranks=(0, 1), enqueued=9, completed=8) for rank in (0, 1)]
    tp += [FlightRecord(rank=rank, group="1", ranks=(2, 3), enqueued=3, completed=3) for rank in (2, 3)]
    assert flight.analyse(tp, job()).behind == ()


def test_who_waits_by_its_stack_is_not_accused() -> None:
    """Gloo records no point-to-point operation: rank 2 waits for rank 0 in one, and rank 3 for rank 2."""
    records = [
        FlightRecord(rank=rank, group=name, ranks=ranks, enqueued=number, completed=4)
        for name, ranks, numbers in (("a", (0, 1), (4, 5)), ("b", (2, 3), (4, 5)))
        for rank, number in zip(ranks, numbers, strict=True)
    ]
    assert flight.analyse(records, job(8, 1)).suspects == ()
    assert flight.analyse(records, job(8, 1), waiting={1, 2, 3}).suspects == ("m0",)


def test_an_end_of_a_point_to_point_operation_that_is_not_there_is_waited_for() -> None:
    """NCCL records them."""
    records = [
        FlightRecord(rank=0, group="pp", ranks=(0, 4), enqueued=-1, completed=-1, sending=True, peers=(4,)),
        FlightRecord(rank=4, group="pp", ranks=(0, 4), enqueued=-1, completed=-1),
        *(record(rank, 9, 8, "1") for rank in (1, 2, 3)),
    ]
    assert flight.analyse(records, job()).behind == (4,)


def test_more_machines_than_the_limit_are_left_to_a_person() -> None:
    """Three of eight left no record."""
    records = [
        FlightRecord(rank=r, group="0", ranks=tuple(range(8)), enqueued=9, completed=8) for r in range(5)
    ]
    found = flight.analyse(records, job(8, 1))
    assert (found.behind, found.suspects) == ((5, 6, 7), ())
    assert "3 machines, more than the limit of 2" in found.reasons[-1]


RECORDS = st.builds(
    record, st.integers(0, 9), st.integers(-1, 5), st.integers(-1, 5), st.sampled_from(["0", "1"])
)


@given(st.lists(RECORDS, max_size=20))
def test_records_never_accuse_half_of_the_job(records: list[FlightRecord]) -> None:
    """Whatever they say."""
    found = flight.analyse(records, job())
    assert 2 * len(found.behind) < 8 or not found.suspects
    assert found.reasons


def test_approval_rules() -> None:
    """A condition that a rule leaves out holds for all."""
    rules = (
        ApprovalRule(incident_class=IncidentClass.NAN_LOSS),
        ApprovalRule(machines_over=2, scope=Scope.CLUSTER),
    )
    policy = ApprovalPolicy(rules=rules, deadline_s=1, default="refuse")
    ask = approval.why_ask
    assert ask(IncidentClass.NAN_LOSS, 1, Scope.JOB, policy)
    assert ask(IncidentClass.JOB_CRASH, 3, Scope.CLUSTER, policy)
    assert not ask(IncidentClass.JOB_CRASH, 2, Scope.CLUSTER, policy)
    assert not ask(IncidentClass.JOB_CRASH, 9, Scope.JOB, policy)
    assert not ask(IncidentClass.NAN_LOSS, 0, Scope.JOB, policy)
    assert ask(IncidentClass.JOB_CRASH, 3, Scope.CLUSTER, policy, dead=3)


def test_a_rule_may_leave_out_machines_that_are_dead() -> None:
    """Those alone: of others as many are asked about as ever."""
    rule = ApprovalRule(machines_over=2, dead_too=False)
    policy = ApprovalPolicy(rules=(rule,), deadline_s=1, default="refuse")
    assert not approval.why_ask(IncidentClass.MACHINE_FAULT, 8, Scope.CLUSTER, policy, dead=6)
    assert "(3, scope" in approval.why_ask(IncidentClass.MACHINE_FAULT, 8, Scope.CLUSTER, policy, dead=5)


@given(st.lists(st.floats(0, 1e6), max_size=20), st.floats(0, 1e6))
def test_offences_decay(times: list[float], later: float) -> None:
    """Never more than their number, and less as time passes."""
    listed = [Offence(machine="m1", at=at) for at in times]
    now = offences.weigh(listed, 1e6, 1e5).get("m1", 0.0)
    then = offences.weigh(listed, 1e6 + later, 1e5).get("m1", 0.0)
    assert 0 <= then <= now <= len(times)


def test_an_offence_halves() -> None:
    """After its half life."""
    listed = [Offence(machine="m1", at=0.0)]
    assert offences.weigh(listed, 100.0, 100.0) == {"m1": 0.5}
    assert offences.offenders({"m1": 2.0, "m2": 1.9}, 2.0) == {"m1"}


def verdict(outcome: ReplayOutcome, *suspects: int) -> ReplayVerdict:
    return ReplayVerdict(outcome=outcome, suspects=suspects, reasons=("x",))


@pytest.mark.parametrize(
    ("found", "left", "expected"),
    [
        (verdict(ReplayOutcome.FOUND, 3), 1, Next.EVICT),
        (verdict(ReplayOutcome.NARROWED, 3, 4), 1, Next.EVICT),
        (verdict(ReplayOutcome.NARROWED, 3, 4, 5), 1, Next.NO_SUSPECT),
        (verdict(ReplayOutcome.SEVERAL, 3, 4), 0, Next.EVICT),
        (verdict(ReplayOutcome.SEVERAL, 3, 4, 5), 0, Next.NO_SUSPECT),
        (verdict(ReplayOutcome.NOT_REPRODUCED), 1, Next.AGAIN),
        (verdict(ReplayOutcome.NOT_REPRODUCED), 0, Next.NO_SUSPECT),
        (verdict(ReplayOutcome.FLAKY, 3), 1, Next.AGAIN),
        (verdict(ReplayOutcome.FLAKY, 3), 0, Next.NO_SUSPECT),
        (verdict(ReplayOutcome.COMMON_CAUSE), 1, Next.BLAME_CODE),
        (verdict(ReplayOutcome.INSEPARABLE), 1, Next.NO_SUSPECT),
    ],
)
def test_every_outcome_of_a_replay_is_decided(found: ReplayVerdict, left: int, expected: Next) -> None:
    """With a limit of two machines; only evictions name suspects."""
    decision = decide(found, 2, left)
    assert decision.next is expected
    assert bool(decision.suspects) is (expected is Next.EVICT)
    assert {one.value for one in ReplayOutcome} == {
        one.value for one in ReplayOutcome if decide(verdict(one, 1), 2, 0).reason
    }


def missing(*machines: int, check: str = "mount_unresponsive") -> list[Finding]:
    return [Finding(check=check, machine=f"m{i}", ok=False) for i in machines]


def test_shared_faults_are_distinguished_from_single_ones() -> None:
    """More than half of the machines, or several where a server does not answer; only of what can be shared."""
    assert services.shared_fault(missing(0, 1, 2), 4) == "mount unresponsive on 3 of 4 machines"
    assert services.shared_fault(missing(0, 1), 4) == "mount unresponsive on 2 of 4 machines"
    assert services.shared_fault(missing(0), 4) == ""
    assert services.shared_fault(missing(0, 1, check="mount_readonly"), 4) == ""
    assert services.shared_fault(missing(0, 1, 2, 3, check="gpu_temperature"), 4) == ""
    assert services.shared_fault(missing(0), 1)
    with pytest.raises(LimitError, match="holdfast resume"):
        services.must_be_in_time("a mount", 11.0, 10.0)
    services.must_be_in_time("a mount", 9.0, 10.0)


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ([], None),
        (["v1"], None),
        (["v1", "v1"], None),
        (["v1", "v2"], 20.0),
        (["v1", "v2", "v2"], 20.0),
        (["v1", "v2", "v1"], None),
        (["v1", "v2", "v1", "v2"], None),
        (["v1", "v2", "v3"], 30.0),
    ],
)
def test_only_new_code_is_a_change(versions: list[str], expected: float | None) -> None:
    """Going back to what ran before is none."""
    epochs = [
        epoch(n, 10.0 * n, None, None).model_copy(update={"code_version": version})
        for n, version in enumerate(versions, 1)
    ]
    assert code.changed_at(epochs) == expected
    assert code.changed_at(epochs, 1e9) is None


def test_machines_are_checked_when_no_more_come() -> None:
    """Together, but none waits for stragglers for ever."""
    assert admission.due({}, 5.0) == []
    assert admission.due({"a": 1.0, "b": 4.5}, 5.0) == []
    assert admission.due({"a": 1.0, "b": 4.5}, 5.5) == ["a", "b"]
    assert admission.due({"a": 1.0, "b": 11.9}, 12.0) == ["a", "b"]


def test_processes_of_one_host_are_not_checked_on_delivery() -> None:
    """Unless the site's setting is otherwise."""
    assert not admission.waits("auto", "local")
    assert admission.waits("auto", "slurm")
    assert admission.waits(True, "local")
    assert not admission.waits(False, "slurm")
