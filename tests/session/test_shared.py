"""Values that are saved once, the place of each rank's own, and values that have to stay equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.session import shared
from holdfast.session.encoded import Placing
from holdfast.session.shared import (
    MOST_SETS,
    Hashes,
    compared,
    in_one,
    settle,
    share_alike,
    share_equal,
    share_nothing,
)

BUFFER, OTHER = -7, 7


def settled(hashes: list[Hashes], placings: list[Placing] | None = None) -> list[Placing]:
    """The decision of each rank."""
    placings = placings or [Placing(rank, alone=False) for rank in range(len(hashes))]
    for rank, each in enumerate(placings):
        settle(each, *compared(hashes), rank)
    return placings


def test_equal_on_all_is_saved_once_and_watched() -> None:
    """Buffers and loaders' tensors; one set of ranks has them."""
    for each in settled([{"model.mask": BUFFER, "loader.tokens": OTHER}] * 3):
        assert each.shared == {"loader.tokens"}
        assert not each.apart
        assert each.replicated == [("loader.tokens", "model.mask")]


def test_a_buffer_that_differs_has_its_plain_name_on_the_first_rank() -> None:
    """There stock torch finds it."""
    hashes = [{"model.mean": BUFFER - rank, "model.mask": BUFFER} for rank in range(3)]
    assert [each.apart for each in settled(hashes)] == [set(), {"model.mean"}, {"model.mean"}]
    assert {tuple(each.replicated) for each in settled(hashes)} == {(("model.mask",),)}


def test_pipeline_stages_are_sets_of_their_own() -> None:
    """Each watches its own; all have as many sets, in one order."""
    hashes: list[Hashes] = [{"a": BUFFER}, {"a": BUFFER}, {"b": BUFFER}, {"b": BUFFER - 1, "c": BUFFER}]
    found = settled(hashes)
    assert [each.replicated for each in found] == [[("a",)], [("a",)], [()], [()]]
    assert [each.apart for each in found] == [set(), set(), set(), {"b"}]


def test_what_differed_once_stays_apart() -> None:
    """Else it would be planned again whenever it happens to be equal."""
    placings = settled([{"m": BUFFER, "l": OTHER}, {"m": BUFFER - 1, "l": OTHER + 1}])
    settled([{"m": BUFFER, "l": OTHER}] * 2, placings)
    assert [each.apart for each in placings] == [set(), {"m"}]
    assert [each.shared for each in placings] == [set(), set()]
    assert placings[0].replicated == []


def test_more_sets_than_a_header_holds() -> None:
    """The rest is saved for each rank."""
    hashes: list[Hashes] = [
        {f"n{each}": BUFFER for each in range(rank + 1)} for rank in range(MOST_SETS + 20)
    ]
    found = settled(hashes)
    assert {len(each.replicated) for each in found} == {MOST_SETS}


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcd"), st.sampled_from([-3, -2, 1, 2, 3])), min_size=1, max_size=6
    )
)
def test_no_name_is_saved_once_that_differs(hashes: list[Hashes]) -> None:
    """Whatever is saved under one name by several ranks is equal there and watched, by all in the same order."""
    kinds: dict[str, bool] = {}
    for each in hashes:
        for name, hashed in list(each.items()):
            if kinds.setdefault(name, hashed < 0) != (hashed < 0):
                del each[name]
    found = settled(hashes)
    assert len({len(each.replicated) for each in found}) == 1
    for name, buffer in kinds.items():
        ranks = [rank for rank, each in enumerate(hashes) if name in each]
        once = [
            rank
            for rank in ranks
            if (name not in found[rank].apart if buffer else name in found[rank].shared)
        ]
        watching = {
            number for rank in ranks for number, names in enumerate(found[rank].replicated) if name in names
        }
        if len(once) > 1:
            assert len({hashes[rank][name] for rank in once}) == 1
            assert len(watching) == 1


def test_ranks_that_report_the_same_need_no_exchange_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome is that of an exchange."""
    monkeypatch.setattr(shared.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(shared.dist, "get_rank", lambda: 1)
    hashes = {"model.mask": BUFFER, "loader.tokens": OTHER}

    def placed(share: Callable[[Any], None]) -> Placing:
        tree = Mock(placing=Placing(1, alone=False))
        share(tree)
        assert tree.forget.called, "its items have other places now"
        return tree.placing  # type: ignore[no-any-return]

    asked = Mock()
    asked.same.side_effect = lambda values: [True] * len(values)
    assert vars(placed(lambda tree: share_alike(tree, hashes))) == vars(
        placed(lambda tree: share_equal(tree, hashes, asked))
    )
    assert asked.same.called


def test_what_is_shared_on_trial_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(shared.dist, "get_rank", lambda: 1)
    tree = Mock(placing=Placing(1, alone=False, unequal={"model.steps"}))
    share_alike(tree, {"model.mask": BUFFER, "loader.tokens": OTHER})
    assert tree.placing.replicated
    tree.forget.reset_mock()
    share_nothing(tree)
    assert vars(tree.placing) == vars(Placing(1, alone=False, unequal={"model.steps"}))
    assert tree.forget.called


@pytest.mark.parametrize(
    ("one", "other"),
    [({"a": 1}, {"a": 2}), ({"a": 1}, {"b": 1}), ({"a": 1}, {}), ({}, None), ({"a": 1}, None)],
)
def test_reports_that_differ_are_different_texts(one: Hashes, other: Hashes | None) -> None:
    assert in_one(one) != in_one(other)


def test_the_order_of_a_report_is_none_of_its_words() -> None:
    assert in_one({"a": 1, "b": 2}) == in_one({"b": 2, "a": 1})
