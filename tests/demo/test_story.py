"""The demo's story: one fault at a time, each recovered before the next."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from rich.console import Console

from holdfast.demo.faults import SCHEDULE, ScheduledFault
from holdfast.demo.observer import Observer
from holdfast.demo.story import CALM_STEPS, Story, recovered
from holdfast.demo.view import View
from holdfast.errors import RecoveryError, UnavailableError
from holdfast.models.alert import IncidentClass, IncidentState
from tests.demo.world import KILL_MACHINE, KILL_RANK, World, incident


def observer_of(world: World) -> Observer:
    return Observer(world, "demo-1", now=world.clock.now, sleep=world.clock.advance)


def story_of(world: World, schedule: Sequence[ScheduledFault]) -> Story:
    return Story(observer_of(world), schedule, world.inject, 2, lambda _: None)


def test_faults_come_in_order_each_once_and_apart() -> None:
    """The injector counts: every fault fired once, at its place in the schedule, and with steps in between."""
    world = World()
    story = story_of(world, [KILL_RANK, KILL_MACHINE])
    story.play()
    assert world.injected == [("kill-rank", "m1", 3), ("kill-machine", "m0", None)]
    assert [row.incident_id for row in story.injected] == ["demo-1-1", "demo-1-2"]
    assert world.step_when_injected[1] - world.step_when_injected[0] >= CALM_STEPS


def test_a_fault_that_needs_a_standby_waits_for_one() -> None:
    """With an empty pool the machine is not killed; the error at the deadline names what was missing."""
    world = World()
    world.standbys = 0
    story = story_of(world, [KILL_RANK, KILL_MACHINE])
    with pytest.raises(RecoveryError, match="calm before kill-machine"):
        story.play()
    assert world.injected == [("kill-rank", "m1", 3)]


def test_a_fault_that_is_not_recovered_ends_the_story() -> None:
    """The faults injected so far are still known."""
    world = World()
    world.heals = False
    story = story_of(world, [KILL_RANK, KILL_MACHINE])
    with pytest.raises(RecoveryError, match="recovery from kill-rank: not within 45 s"):
        story.play()
    assert [(row.fault.name, row.incident_id) for row in story.injected] == [("kill-rank", "demo-1-1")]


def test_an_incident_that_needs_a_human_ends_the_wait_at_once() -> None:
    """No use in waiting for the deadline."""
    world = World()
    world.all_incidents.append(incident(1, IncidentClass.JOB_HANG, 1.0, state=IncidentState.NEEDS_HUMAN))
    with pytest.raises(RecoveryError, match="demo-1-1 needs a human"):
        observer_of(world).wait("anything", lambda _: None, 30.0)


def test_a_job_too_short_for_the_schedule_says_so() -> None:
    """Done before the fault: more steps are wanted."""
    with pytest.raises(RecoveryError, match="give it more steps"):
        story_of(World(steps=4), [KILL_RANK]).play()


def test_a_recovery_of_another_class_is_not_taken_for_it() -> None:
    """Nor one from before the injection, nor while another incident is still open."""
    facts = observer_of(World()).look()
    done = {"state": IncidentState.RECOVERED, "recovered_at": 12.0}
    other = incident(1, IncidentClass.JOB_HANG, 11.0, **done)
    early = incident(2, IncidentClass.JOB_CRASH, 5.0, **done)
    right = incident(3, IncidentClass.JOB_CRASH, 11.0, **done)
    still_open = incident(4, IncidentClass.JOB_CRASH, 11.5)

    def found(*incidents: object) -> object:
        return recovered(type(facts)(**vars(facts) | {"incidents": incidents}), KILL_RANK, 10.0)

    assert found(other, early) is None
    assert found(right, still_open) is None
    assert found(early, right, other) == right


def test_a_gateway_that_is_away_for_a_moment_is_waited_for() -> None:
    """A silence longer than the patience is passed on."""
    world = World()
    observer = observer_of(world)
    real, silent = world.status, [True, True, False]

    def status() -> dict[str, object]:
        if silent and silent.pop(0):
            raise UnavailableError("away")
        return real()

    world.status = status  # type: ignore[method-assign]
    assert observer.wait("a step", lambda facts: facts.step, 5.0)
    silent[:] = [True] * 1000
    with pytest.raises(UnavailableError):
        observer.wait("a step", lambda facts: None, 100.0)


def test_the_timeline_keeps_only_changes() -> None:
    """A job that stands still is two points, however long."""
    world = World()
    world.state = "paused"
    observer = observer_of(world)
    for _ in range(50):
        world.clock.advance(1.0)
        observer.look()
    assert len(observer.samples) == 2
    assert observer.samples[1].at - observer.samples[0].at == 49.0


def test_the_schedule_has_the_whole_story() -> None:
    """All six faults, in the promised order."""
    assert [fault.name for fault in SCHEDULE] == [
        "kill-rank",
        "kill-machine",
        "hang-rank",
        "code-bug",
        "xid-79",
        "bad-matmul",
    ]


def test_without_a_terminal_the_view_prints_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Each incident is announced once, and progress now and then."""
    world = World()
    view = View(Console(width=160), 100)
    observer = Observer(world, "demo-1", view.show, now=world.clock.now, sleep=world.clock.advance)
    with view:
        world.inject("kill-rank", "m1", 3)
        observer.look()
        observer.look()
    out = capsys.readouterr().out
    assert out.count("incident demo-1-1 opened: job_crash on m1") == 1
    assert "of 100 (recovering, epoch 1, 2 standbys)" in out
