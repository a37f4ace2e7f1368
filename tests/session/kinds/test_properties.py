"""Any nested state, changed in any way between saves, is what the last complete save held."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.session.kinds import strategies
from tests.session.kinds.compare import difference
from tests.session.kinds.tiers import site
from tests.session.kinds.values import Holder

pytestmark = pytest.mark.torch
_SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)


def _held(history: list[Any]) -> Holder:
    return Holder(lambda step: copy.deepcopy(history[max(step - 1, 0)]))


@_SETTINGS
@given(first=strategies.histories, second=strategies.histories)
def test_the_last_save_comes_back(first: list[Any], second: list[Any]) -> None:
    """Two parts with histories of their own; restored from memory and S3 into the state of the beginning."""
    steps = min(len(first), len(second))
    with tempfile.TemporaryDirectory() as folder, site(Path(folder)) as place:
        state = {"one": _held(first), "two": _held(second)}
        session = place.begin(state)
        for step in range(1, steps + 1):
            for each in state.values():
                each.advance(step)
            place.save(session, state, step)
        for tier in ("s3", "memory"):
            fresh = {"one": _held(first), "two": _held(second)}
            session = place.restore(tier, steps, fresh)
            assert not difference(first[steps - 1], fresh["one"].value, tier)
            assert not difference(second[steps - 1], fresh["two"].value, tier)
        place.save(session, fresh, steps + 1)
        again = {"one": _held(first), "two": _held(second)}
        place.restore("memory", steps + 1, again)
        assert not difference(first[steps - 1], again["one"].value, "second generation")
