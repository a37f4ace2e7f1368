"""Each rank's share of a step's samples: none twice and none left out, at any number of ranks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.session import Session
from holdfast.session.share import share_of


@given(step=st.integers(1, 10**6), batch=st.integers(1, 300), at_most=st.integers(1, 50), data=st.data())
def test_all_ranks_together_have_each_sample_once(
    step: int, batch: int, at_most: int, data: st.DataObject
) -> None:
    ranks = data.draw(st.integers(1, batch))
    shares = [share_of(step, batch, rank, ranks) for rank in range(ranks)]
    parts = [list(each.split(at_most)) for each in shares]
    used = [sample for each in parts for part in each for sample in part]
    assert used == list(range((step - 1) * batch, step * batch))
    assert {len(each.samples) - batch // ranks for each in shares} <= {0, 1}
    # The mean over ranks of the sum of each rank's weights is one: no sample weighs more than another.
    weights = [share.weight(len(part)) for share, each in zip(shares, parts, strict=True) for part in each]
    assert math.isclose(sum(weights) / ranks, 1.0)


@pytest.mark.parametrize(
    ("step", "batch", "rank", "ranks", "words"),
    [
        (0, 8, 0, 1, "step = 0"),
        (1, 8, 2, 2, "rank = 2 of ranks = 2"),
        (1, 1, 0, 2, "batch = 1 with 2 ranks"),
    ],
)
def test_numbers_out_of_range_are_refused(step: int, batch: int, rank: int, ranks: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        share_of(step, batch, rank, ranks)


def test_without_an_agent_one_rank_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert Session().share(2, 5).samples == range(5, 10)
    assert Session().share(2, 6, rank=1, ranks=2).samples == range(9, 12)


def test_under_plain_torchrun_ranks_share_as_under_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each would compute the whole batch of all."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert Session({}).share(2, 6).samples == range(9, 12)
