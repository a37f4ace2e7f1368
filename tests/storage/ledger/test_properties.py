"""Properties of the ledger that hold for any order of calls."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.clock import FakeClock
from holdfast.errors import NoStandbyError, StaleError
from holdfast.models.machine import MachineState
from holdfast.storage.ledger import Ledger
from tests.storage.ledger.samples import incident, register, running_job

MACHINES = st.integers(0, 5).map(lambda n: f"m{n}")
POOL_CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), MACHINES),
        st.tuples(st.just("release"), MACHINES),
        st.tuples(st.just("cordon"), MACHINES),
        st.tuples(st.just("claim"), st.integers(0, 4)),
    ),
    max_size=25,
)


def _ledger() -> Ledger:
    ledger = Ledger("sqlite://", FakeClock())
    ledger.create()
    return ledger


@given(POOL_CALLS)
@settings(max_examples=40)
def test_a_machine_has_one_owner_at_a_time(calls: list[tuple[str, str | int]]) -> None:
    """Claims give standbys only, all or none, and never one that has an owner or is cordoned."""
    ledger, standing_by = _ledger(), set[str]()
    known = set[str]()
    for number, (call, value) in enumerate(calls):
        if call == "claim":
            assert isinstance(value, int)
            try:
                claimed = [machine.name for machine in ledger.claim_standbys(f"job-{number}", value)]
            except NoStandbyError:
                assert value > len(standing_by)
                continue
            assert len(set(claimed)) == value
            assert set(claimed) <= standing_by
            standing_by -= set(claimed)
            assert {m.name for m in ledger.machines(job=f"job-{number}")} == set(claimed)
        elif call == "register":
            register(ledger, str(value), f"i{number}")
            if value not in known:
                standing_by.add(str(value))
            known.add(str(value))
        elif value in known:
            cordon = call == "cordon"
            state = MachineState.CORDONED if cordon else MachineState.STANDBY
            ledger.set_machine(str(value), state=state, job=None)
            (standing_by.discard if cordon else standing_by.add)(str(value))
        assert {m.name for m in ledger.machines(state=MachineState.STANDBY)} == standing_by
    ledger.close()


@given(st.lists(st.tuples(st.sampled_from(["next", "begin"]), st.integers(1, 6)), max_size=25))
@settings(max_examples=40)
def test_attempts_only_grow_and_fence_those_before(calls: list[tuple[str, int]]) -> None:
    """Nothing that an old attempt asks for is written."""
    ledger, current, begun = _ledger(), 1, set[str]()
    running_job(ledger)
    opened = incident(ledger)
    for call, attempt in calls:
        if call == "next" and attempt == current:
            current = ledger.next_attempt(opened.id, attempt).attempt
            assert current == attempt + 1
        elif call == "next":
            with pytest.raises(StaleError):
                ledger.next_attempt(opened.id, attempt)
        elif attempt < current:
            with pytest.raises(StaleError):
                ledger.begin(opened.id, attempt, f"step:{attempt}", "step", {})
        else:
            ledger.begin(opened.id, attempt, f"step:{attempt}", "step", {})
            begun.add(f"step:{attempt}")
        assert ledger.incident(opened.id).attempt == current
        assert {action.key for action in ledger.actions(opened.id)} == begun
    ledger.close()
