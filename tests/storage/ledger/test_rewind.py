"""A ledger rewound to a time in the past: later decisions about checkpoints are not in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clock import FakeClock
from holdfast.models.alert import IncidentState
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.storage.ledger import Ledger
from holdfast.storage.ledger.rewind import Then
from tests.storage.ledger.samples import classified, incident, running_job


@pytest.fixture
def copy(tmp_path: Path, clock: FakeClock) -> Iterator[Ledger]:
    made = Ledger(f"sqlite:///{tmp_path}/copy.db", clock)
    made.create()
    yield made
    made.close()


def suspected(ledger: Ledger, clock: FakeClock, step: int) -> str:
    """An incident that marks every state from ``step`` on; its id."""
    opened = incident(ledger)
    clock.advance(1)
    ledger.begin(opened.id, 1, f"suspect:after-{step - 1}", "suspect", {})
    ledger.mark_suspect("gpt", step, f"{opened.id}: loss not finite")
    ledger.finish(opened.id, f"suspect:after-{step - 1}", {})
    ledger.set_incident(opened.id, state=IncidentState.RECOVERED, summary="done")
    clock.advance(1)
    return opened.id


def test_checkpoints_are_suspect_only_if_they_were_then(
    ledger: Ledger, clock: FakeClock, copy: Ledger
) -> None:
    """By an earlier incident they were; by this one, a later one, or a state that did not load since, they were not."""
    running_job(ledger)
    for step in (10, 20, 30, 40):
        made = RemoteCheckpoint(
            job="gpt", step=step, epoch=1, world_size=8, key=f"gpt/{step}", saved_at=clock.now()
        )
        ledger.record_checkpoint(made)
    suspected(ledger, clock, 40)
    between = suspected(ledger, clock, 30)
    later = incident(ledger)
    ledger.begin(later.id, 1, "verify:e2", "verify", {})
    ledger.mark_suspect("gpt", 20, "refused: no tensor w")
    ledger.finish(later.id, "verify:e2", {"epoch": 2, "refused": "no tensor w"})
    assert [each.step for each in ledger.checkpoints("gpt", include_suspect=False)] == [10]
    ledger.rewind(between, classified(), Then(), copy)
    assert [each.step for each in copy.checkpoints("gpt", include_suspect=False)] == [30, 20, 10]
    assert [each.step for each in ledger.checkpoints("gpt", include_suspect=False)] == [10]
