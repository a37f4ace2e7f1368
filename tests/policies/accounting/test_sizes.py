"""Time on fewer machines than wanted, and time at zero: by share, by cause, by wish."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import Incident, IncidentClass, IncidentState
from holdfast.models.history import Action, ActionState, Epoch, History, StateChange
from holdfast.models.job import JobState
from holdfast.policies.accounting.ettr import Ettr, ettr
from holdfast.policies.accounting.ettr_series import series
from holdfast.policies.accounting.sizes import Share, shares
from tests.policies.make import epoch


def on(found: Epoch, machines: int, incident: str | None = None) -> Epoch:
    names = tuple(f"m{slot}" for slot in range(machines))
    return found.model_copy(update={"machines": names, "incident_id": incident})


def resize(at: float, to: int, want: int | None = None) -> Action:
    result: dict[str, Any] = {"from": 0, "to": to} | ({} if want is None else {"want": want})
    return Action(
        incident_id="gpt-9",
        key=f"resize:{at}",
        kind="resize",
        state=ActionState.DONE,
        result=result,
        begun_at=at,
        done_at=at,
    )


def incident(name: str, kind: IncidentClass, at: float) -> Incident:
    return Incident(
        id=name,
        job="gpt",
        incident_class=kind,
        state=IncidentState.RECOVERED,
        epoch=1,
        detected_at=at,
        opened_at=at,
        recovered_at=at,
        closed_at=at,
    )


# Ten steps on four machines; one is lost; ten on three, a crash, ten more; ten on four again. All without a pause.
EPOCHS = (
    on(epoch(1, 0.0, (1, 1.0), (10, 10.0)), 4),
    on(epoch(2, 10.0, (11, 11.0), (20, 20.0)), 3, "gpt-1"),
    on(epoch(3, 20.0, (21, 21.0), (30, 30.0)), 3, "gpt-2"),
    on(epoch(4, 30.0, (31, 31.0), (40, 40.0)), 4, "gpt-3"),
)
INCIDENTS = (
    incident("gpt-1", IncidentClass.MACHINE_FAULT, 10.0),
    incident("gpt-2", IncidentClass.JOB_CRASH, 20.0),
    incident("gpt-3", IncidentClass.SCALE_JOB, 30.0),
)
CAUSES = {row.id: str(row.incident_class) for row in INCIDENTS}


def measured(want: int, *actions: Action) -> Ettr:
    return ettr(EPOCHS, 40.0, incidents=INCIDENTS, actions=actions, want=want)


def test_steps_on_fewer_machines_count_by_their_share() -> None:
    """The missing share is lost to the incident that took the machine, also after another one."""
    found = measured(4)
    assert found.productive_s == pytest.approx(10 + 2 * 7.5 + 10)
    assert found.account.by_phase() == pytest.approx({"smaller_size": 5.0})
    assert found.account.by_class() == pytest.approx({"machine_fault": 5.0})
    assert found.worst_gap_s == 0.0


def test_a_size_by_wish_is_the_whole() -> None:
    """A person asked for three at 10, and for four again at 30; what was wanted before is with the change."""
    found = measured(4, resize(10.0, 3, want=4), resize(30.0, 4, want=3))
    assert found.productive_s == pytest.approx(40.0)
    assert not found.account.lost


def test_growing_back_is_no_wish() -> None:
    """It changes nothing of what was wanted before."""
    assert measured(4, resize(30.0, 4)).productive_s == pytest.approx(35.0)


def test_a_size_that_is_unknown_or_larger_counts_in_full() -> None:
    """A job of the time before sizes; one that was wanted smaller."""
    for want in (0, 2):
        assert measured(want).productive_s == pytest.approx(40.0)


def test_the_first_wish_shows_what_was_wanted_before_it() -> None:
    """The job began on fewer than its file wants."""
    rows = (EPOCHS[0], EPOCHS[1])
    found = shares(rows, [resize(10.0, 3, want=8)], CAUSES, 3)
    assert found == {1: Share(0.5), 2: Share()}


def test_time_at_zero_by_wish_is_not_lost() -> None:
    """Ten steps, a minute at zero, ten more; starting again is lost as always."""
    rows = [
        on(epoch(1, 0.0, (1, 1.0), (10, 10.0)), 4),
        on(epoch(2, 72.0, (11, 75.0), (20, 84.0)), 4),
    ]
    states = [
        StateChange(job="gpt", state=JobState.RUNNING, at=0.0),
        StateChange(job="gpt", state=JobState.SCALED_TO_ZERO, at=11.0),
        StateChange(job="gpt", state=JobState.RECOVERING, at=71.0),
    ]
    found = ettr(rows, 84.0, states=states, want=4)
    assert (found.zero_s, found.wall_s, found.productive_s) == (60.0, 84.0, pytest.approx(20.0))
    assert found.ettr == pytest.approx(20 / 24)
    assert sum(found.account.by_phase().values()) == pytest.approx(4.0)
    assert found.worst_gap_s == pytest.approx(3.0)
    idle = ettr(rows, 70.0, since=20.0, states=states[:2], want=4)
    assert (idle.ettr, idle.zero_s) == (1.0, 50.0)
    curve = series(History(epochs=tuple(rows), states=tuple(states), want=4), 84.0, 7)
    assert curve[-1].total == pytest.approx(found.ettr)
    assert curve[2].interval == 1.0


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    want=st.integers(0, 9),
    wishes=st.lists(st.tuples(st.floats(0, 70), st.integers(1, 9), st.integers(1, 9)), max_size=4),
    zero=st.floats(0, 70),
)
def test_every_microsecond_is_accounted_once(
    sizes: list[int], want: int, wishes: list[tuple[float, int, int]], zero: float
) -> None:
    """Productive, at zero, and lost are the wall-clock time, whatever sizes a job had."""
    rows = [
        on(epoch(n + 1, 10.0 * n, (5 * n + 1, 10.0 * n + 2), (5 * n + 5, 10.0 * n + 8)), size)
        for n, size in enumerate(sizes)
    ]
    states = [
        StateChange(job="gpt", state=JobState.SCALED_TO_ZERO, at=zero),
        StateChange(job="gpt", state=JobState.RUNNING, at=zero + 5),
    ]
    changes = [resize(at, to, before) for at, to, before in wishes]
    found = ettr(rows, 10.0 * len(sizes), states=states, actions=changes, want=want).account
    assert found.productive_us + found.zero_us + sum(row.us for row in found.lost) == found.wall_us
    assert 0 <= found.ratio <= 1
