"""Whatever is in a part's state comes back exactly from every tier, twice in a row, or is refused at the first save."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import CheckpointError
from tests.session.kinds.compare import difference
from tests.session.kinds.tiers import TIERS, site
from tests.session.kinds.values import VALUES, Holder, Value

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*Sparse.*beta state", "ignore:.*nested tensors.*prototype"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
]


@pytest.mark.parametrize("kind", [each for each in VALUES if not each.refused], ids=lambda each: each.name)
def test_a_value_comes_back_exactly(kind: Value, tmp_path: Path) -> None:
    """From each tier into fresh objects, and once more after two more saves of what came back."""
    with site(tmp_path) as place:
        saved = {"extra": Holder(kind.at)}
        session = place.begin(saved)
        for step in (1, 2, 3):
            saved["extra"].advance(step)
            place.save(session, saved, step)
        for tier in TIERS[::-1]:
            fresh = {"extra": Holder(kind.at)}
            session = place.restore(tier, 3, fresh)
            assert not difference(kind.at(3), fresh["extra"].value, tier)
        for step in (4, 5):
            place.save(session, fresh, step)
            assert not difference(kind.at(step - 1), fresh["extra"].value, "while saving")
            fresh["extra"].advance(step)
        again = {"extra": Holder(kind.at)}
        place.restore("memory", 5, again)
        assert not difference(kind.at(4), again["extra"].value, "second generation")


@pytest.mark.parametrize("kind", [each for each in VALUES if each.refused], ids=lambda each: each.name)
def test_a_value_is_refused_at_the_first_save(kind: Value, tmp_path: Path) -> None:
    """The message names the path in the state and what to do."""
    with site(tmp_path) as place:
        state = {"extra": Holder(kind.at)}
        session = place.begin(state)
        state["extra"].advance(1)
        session.step(1)
        with pytest.raises(CheckpointError, match=r"to|use|expected|define") as refused:
            session.checkpoint(state)
        assert kind.refused in str(refused.value)
