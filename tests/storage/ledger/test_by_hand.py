from __future__ import annotations

import pytest

from holdfast.clock import FakeClock
from holdfast.errors import UnknownError
from holdfast.models.history import ActionState
from holdfast.storage.ledger import Ledger


def test_what_people_do_is_there_before_and_after(ledger: Ledger, clock: FakeClock) -> None:
    """Person, time and reason before the act; its outcome after; newest first."""
    first = ledger.note_by_hand("evict", "m0", by="ada", via="page", reason="smoke")
    assert (first.state, first.outcome, first.done_at) == (ActionState.INTENT, "", None)
    clock.advance(5.0)
    ended = ledger.end_by_hand(first.id, ActionState.DONE, "opened gpt-1")
    assert (ended.at, ended.done_at, ended.outcome) == (first.at, first.at + 5.0, "opened gpt-1")
    second = ledger.note_by_hand("approve", "gpt-1", by="bob", via="api", reason="")
    assert [entry.id for entry in ledger.by_hand()] == [second.id, first.id]
    assert ledger.by_hand("m0") == [ended]
    assert ledger.by_hand(limit=1) == [second]
    with pytest.raises(UnknownError, match="no manual request 99"):
        ledger.end_by_hand(99, ActionState.DONE, "")
