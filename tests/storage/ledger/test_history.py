from collections.abc import Callable

import pytest

from holdfast.clock import FakeClock
from holdfast.errors import LimitError, UnknownError
from holdfast.models.alert import IncidentClass, IncidentState
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.models.job import JobState
from holdfast.models.missing import Missing
from holdfast.policies.pool.busy import machine_days
from holdfast.storage.ledger import Ledger
from holdfast.storage.ledger.evictions import UNCOUNTED, Past
from tests.storage.ledger.samples import incident, running_job, spec

DAY_S = 86_400.0


def checkpoint(step: int, epoch: int = 1) -> RemoteCheckpoint:
    return RemoteCheckpoint(job="gpt", step=step, epoch=epoch, world_size=8, key=f"gpt/{step}", saved_at=1.0)


def test_an_epoch_has_its_first_and_last_step(ledger: Ledger) -> None:
    """Marks may come late, twice and several at once."""
    running_job(ledger)
    opened = ledger.open_epoch("gpt", 1, 10, "v1", ["m0", "m1"], "submitted", at=100.0)
    assert ledger.open_epoch("gpt", 1, 99, "v2", [], "again", at=101.0) == opened
    ledger.mark("gpt", 1, 11, 102.0)
    ledger.mark("gpt", 1, 15, 106.0, steps=4)
    ledger.mark("gpt", 1, 13, 104.0)
    ledger.close_epoch("gpt", 1, "rank 3 died", 107.0)
    ledger.close_epoch("gpt", 1, "other", 108.0)
    (epoch,) = ledger.epochs("gpt")
    assert (epoch.first_step, epoch.first_step_at, epoch.last_step, epoch.last_step_at) == (
        11,
        102.0,
        15,
        106.0,
    )
    assert (epoch.machines, epoch.closed_at, epoch.close_reason) == (("m0", "m1"), 107.0, "rank 3 died")
    with pytest.raises(UnknownError, match="no epoch 7"):
        ledger.mark("gpt", 7, 1, 1.0)


def test_a_new_epoch_ends_those_before_it(ledger: Ledger) -> None:
    """Two generations never run at once, whatever died before it could say so."""
    running_job(ledger)
    ledger.open_epoch("gpt", 1, 0, "v1", ["m0"], "submitted", at=100.0)
    ledger.open_epoch("gpt", 2, 5, "v1", ["m0"], "recovered", "gpt-1", at=120.0)
    first, second = ledger.epochs("gpt")
    assert (first.closed_at, first.close_reason) == (120.0, "replaced by epoch 2")
    bare = ledger.epochs("gpt", machines=False)
    assert bare == [each.model_copy(update={"machines": ()}) for each in (first, second)]
    assert first.machines == ("m0",)
    assert (second.closed_at, second.incident_id) == (None, "gpt-1")


def test_the_furthest_step_counts_over_all_epochs_of_a_submission(ledger: Ledger) -> None:
    """A job submitted again under the same name starts its own count."""
    running_job(ledger)
    assert ledger.max_step("gpt") == 0
    for epoch, start, last in ((1, 0, 50), (2, 40, 45)):
        assert ledger.next_epoch("gpt") == epoch
        ledger.open_epoch("gpt", epoch, start, "v1", ["m0"], "", at=1.0)
        ledger.mark("gpt", epoch, last, 2.0)
    assert ledger.max_step("gpt") == 50
    running_job(ledger, "other")
    ledger.open_epoch("other", ledger.next_epoch("other"), 7, "v1", ["m1"], "", at=1.0)
    assert ledger.max_steps() == {"gpt": 50, "other": 7}
    ledger.set_job("gpt", state=JobState.STOPPED)
    ledger.add_job(spec(), "v2")
    assert ledger.max_step("gpt") == 0
    assert ledger.max_steps() == {"other": 7}
    ledger.open_epoch("gpt", ledger.next_epoch("gpt"), 45, "v2", ["m0"], "", at=3.0)
    assert ledger.max_step("gpt") == 45
    assert ledger.max_steps() == {"gpt": 45, "other": 7}


def test_what_checks_found_on_all_machines_is_read_only_where_it_is_asked_for(ledger: Ledger) -> None:
    """Findings of a thousand machines are megabytes; the gateway looks at the actions each second."""
    running_job(ledger)
    known = incident(ledger)
    for key, kind in (("pause:e1", "pause"), ("check:inspect:e1", "check"), ("stacks:e1", "stacks")):
        ledger.begin(known.id, 1, key, kind, {"incarnations": {"m0": "i1"}})
        ledger.finish(known.id, key, {"findings": [{"machine": "m0", "ok": True}]})
    ledger.begin(known.id, 1, "check:matmul:e1", "check", {"tier": "matmul"})
    whole = ledger.actions(known.id)
    bare = ledger.actions(known.id, evidence=False)
    assert [each.key for each in bare] == [each.key for each in whole]
    left_out = {"intent": {}, "result": {}}
    assert bare == [whole[0], *(each.model_copy(update=left_out) for each in whole[1:])]
    assert whole[1].result["findings"]
    assert ledger.actions(known.id, "check") == [whole[1], whole[3]]
    assert list(ledger.history("gpt").actions) == bare


def test_code_versions_keep_their_order_and_stay_bad(ledger: Ledger) -> None:
    """A version stored again is the one it was."""
    ledger.add_version("gpt", "aaa", "gpt/code/aaa", "first", by="ann")
    ledger.add_version("gpt", "bbb", "gpt/code/bbb", "second")
    assert ledger.mark_bad("gpt", "aaa", "TypeError").bad
    ledger.mark_bad("gpt", "aaa", "other")
    ledger.add_version("gpt", "aaa", "gpt/code/aaa", "again")
    first, second = ledger.versions("gpt")
    assert (first.version, first.note, first.by, first.bad, first.bad_reason) == (
        "aaa",
        "first",
        "ann",
        True,
        "TypeError",
    )
    assert (second.version, second.bad) == ("bbb", False)
    with pytest.raises(UnknownError, match="no code version 'ccc'"):
        ledger.mark_bad("gpt", "ccc", "x")


def test_suspect_checkpoints_are_kept_and_distinguished(ledger: Ledger) -> None:
    """Everything from the first bad step on; the first reason stands."""
    running_job(ledger)
    for step in (10, 20, 30):
        ledger.record_checkpoint(checkpoint(step))
        ledger.record_checkpoint(checkpoint(step))
    marked = ledger.mark_suspect("gpt", 20, "NaN at 19")
    assert [c.step for c in marked] == [30, 20]
    assert ledger.mark_suspect("gpt", 20, "other") == marked
    assert [c.step for c in ledger.checkpoints("gpt", include_suspect=False)] == [10]
    assert [(c.step, c.suspect_reason) for c in ledger.checkpoints("gpt")] == [
        (30, "NaN at 19"),
        (20, "NaN at 19"),
        (10, ""),
    ]


def test_states_of_an_earlier_submission_are_not_suspect(ledger: Ledger) -> None:
    """Neither those that are known, nor one whose upload ends after the marking; what was suspect before stays so."""
    running_job(ledger)
    first = ledger.next_epoch("gpt")
    ledger.record_checkpoint(checkpoint(30, epoch=first))
    ledger.mark_suspect("gpt", 60, "NaN at 59")
    ledger.set_job("gpt", state=JobState.STOPPED)
    ledger.add_job(ledger.job("gpt").spec, "v1")
    second = ledger.next_epoch("gpt")
    ledger.record_checkpoint(checkpoint(20, epoch=second))
    assert [(c.step, c.epoch) for c in ledger.mark_suspect("gpt", 10, "NaN at 9")] == [(20, second)]
    assert not ledger.record_checkpoint(checkpoint(40, epoch=first)).suspect
    assert ledger.record_checkpoint(checkpoint(70, epoch=first)).suspect_reason == "NaN at 59"
    assert ledger.record_checkpoint(checkpoint(40, epoch=second)).suspect_reason == "NaN at 9"
    assert [c.step for c in ledger.checkpoints("gpt", include_suspect=False)] == [40, 30]


def test_an_upload_that_ends_after_the_marking_is_suspect_too(ledger: Ledger) -> None:
    """The same step made again by a later epoch is not."""
    running_job(ledger)
    ledger.next_epoch("gpt")
    ledger.mark_suspect("gpt", 20, "NaN at 19")
    assert ledger.record_checkpoint(checkpoint(30, epoch=1)).suspect_reason == "NaN at 19"
    assert not ledger.record_checkpoint(checkpoint(10, epoch=1)).suspect
    assert not ledger.record_checkpoint(checkpoint(30, epoch=2)).suspect


def test_the_pool_has_the_size_last_set(ledger: Ledger, clock: FakeClock) -> None:
    """None before it was ever set."""
    assert ledger.pool().target == 0
    ledger.set_pool(2, "P99")
    clock.advance(1)
    ledger.set_pool(3, "more failures")
    pool = ledger.pool()
    assert (pool.target, pool.reason, pool.at) == (3, "more failures", clock.now())


def test_machine_days_count_the_time_in_jobs(ledger: Ledger, clock: FakeClock) -> None:
    """Only after the given time; an open epoch runs until now."""
    running_job(ledger)
    start = clock.now()
    ledger.open_epoch("gpt", 1, 0, "v1", ["m0", "m1"], "", at=start)
    ledger.close_epoch("gpt", 1, "", start + DAY_S)
    ledger.open_epoch("gpt", 2, 0, "v1", ["m0"], "", at=start + DAY_S)
    clock.advance(3 * DAY_S)
    assert _machine_days(ledger, clock, since=0.0) == pytest.approx(4.0)
    assert _machine_days(ledger, clock, since=start + DAY_S / 2) == pytest.approx(3.0)


def _machine_days(ledger: Ledger, clock: FakeClock, since: float) -> float:
    return sum(machine_days(ledger.epochs_after(since), since, clock.now()).values())


def test_only_machines_that_failed_themselves_count_as_failures(ledger: Ledger, clock: FakeClock) -> None:
    """Healthy ones that an over-eviction took along do not, nor evictions that never ended."""
    running_job(ledger)
    fault, hang = incident(ledger, IncidentClass.MACHINE_FAULT), incident(ledger, IncidentClass.JOB_HANG)
    for opened, machines in ((fault, ["m5"]), (hang, ["m0", "m1", "m2"])):
        for machine in machines:
            ledger.begin(opened.id, 1, f"evict:{machine}", "evict", {})
            ledger.finish(opened.id, f"evict:{machine}")
    ledger.begin(fault.id, 1, "evict:m6", "evict", {})
    assert ledger.failures_by_machine(since=0.0) == {"m5": 1, "m0": 1}
    assert ledger.failures_by_machine(since=clock.now()) == {}
    assert ledger.evictions(since=0.0, but=fault.id) == [clock.now()] * 4


def test_evictions_of_dead_machines_are_counted_apart(ledger: Ledger, clock: FakeClock) -> None:
    running_job(ledger)
    fault = incident(ledger, IncidentClass.MACHINE_FAULT)
    seen: list[tuple[int, int]] = []

    def may(past: Past) -> None:
        seen.append((len(past(0.0)), len(past(0.0, counted=False))))

    for machine, intent in (("m5", {UNCOUNTED: True}), ("m6", {})):
        ledger.begin_evictions(fault.id, 1, {f"evict:{machine}": intent}, may)
        ledger.finish(fault.id, f"evict:{machine}")
    ledger.begin_evictions(fault.id, 1, {}, may)
    assert seen == [(0, 0), (0, 1), (1, 1)]
    assert (ledger.evictions(0.0), ledger.evictions(0.0, counted=False)) == ([clock.now()], [clock.now()])


def test_evictions_in_flight_of_other_incidents_count(ledger: Ledger, clock: FakeClock) -> None:
    """One bad sensor accuses machines of many jobs at once: each run sees those that the others have begun."""
    for job in ("gpt", "bert"):
        running_job(ledger, job)
    mine = incident(ledger, IncidentClass.MACHINE_FAULT)
    other = incident(ledger, IncidentClass.MACHINE_FAULT, "bert")

    def at_most(most: int) -> Callable[[Past], None]:
        def may(past: Past) -> None:
            if len(past(0.0)) >= most:
                raise LimitError("too many", Missing.EVICTIONS)

        return may

    ledger.begin_evictions(other.id, 1, {"evict:m5": {}, "evict:m6": {}}, at_most(1))
    ledger.fail(other.id, "evict:m6", "it lives")
    assert len(ledger.evictions(since=0.0)) == 2
    assert (len(ledger.evictions(0.0, "bert")), ledger.evictions(0.0, "gpt")) == (2, [])
    with pytest.raises(LimitError):
        ledger.begin_evictions(mine.id, 1, {"evict:m0": {}}, at_most(2))
    assert ledger.actions(mine.id) == []
    ledger.begin_evictions(other.id, 1, {"evict:m5": {}, "evict:m6": {}}, at_most(1))  # its own do not count
    ledger.set_incident(other.id, state=IncidentState.DISMISSED)
    assert ledger.evictions(since=0.0) == []
    ledger.begin_evictions(mine.id, 1, {"evict:m0": {}}, at_most(1))
    assert ledger.evictions(since=clock.now()) == []


def test_steps_that_a_job_passes_over_are_its_own_and_end_with_its_submission(
    ledger: Ledger, clock: FakeClock
) -> None:
    """Only completed rows count; a job submitted again reads all of its data."""
    running_job(ledger)
    assert ledger.skipped_steps("gpt") == ()
    fault = incident(ledger, IncidentClass.JOB_CRASH)
    for life, step in (("e1", 35), ("e2", 21), ("e3", 21)):
        ledger.begin(fault.id, 1, f"skip:{life}", "skip", {"step": step})
        ledger.finish(fault.id, f"skip:{life}", {"step": step})
    ledger.begin(fault.id, 1, "skip:e4", "skip", {"step": 50})
    assert ledger.skipped_steps("gpt") == (21, 35)
    assert ledger.skipped_steps("bert") == ()
    clock.advance(60)
    spec = ledger.job("gpt").spec
    ledger.set_job("gpt", state=JobState.STOPPED)
    ledger.add_job(spec, "v1")
    assert ledger.skipped_steps("gpt") == ()
