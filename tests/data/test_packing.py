"""Packed sequences: every token once, after any crashes and at any number of ranks."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import data
from holdfast.errors import SettingsError, UnavailableError
from tests.data.files import ids, write

LANES, END = 4, 10_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("packed")
    for name in "ab":
        write(root / f"{name}.jsonl", list(range((name == "b") * 50, (name == "b") * 50 + 50)))
    return root


def tokens(rows: Any) -> list[list[int]]:
    """As many as the id's last digit; some samples have none, some are longer than a sequence."""
    return [[each * 10 + at for at in range(each % 17)] for each in ids(rows)]


def packed(folder: Path, rank: int, ranks: int, length: int = 7) -> data.PackedDataset:
    dataset = data.Dataset(data.folder(folder, shuffle=9), 1, lanes=LANES, rank=rank, ranks=ranks, threads=1)
    return data.PackedDataset(dataset, tokens, length=length, batch=2 * LANES, end=END, pad=-1)


def run(each: list[data.PackedDataset], steps: int) -> list[list[int]]:
    """Sequences of the steps, of all ranks; without those that are padding alone."""
    found = []
    for _ in range(steps):
        for one in each:
            made, real = next(one)
            assert (made[~real] == -1).all()
            found += [row[mask].tolist() for row, mask in zip(made, real, strict=True) if mask.any()]
    return found


@functools.cache
def whole(folder: Path) -> list[list[int]]:
    """All sequences of a run without faults."""
    return run([packed(folder, 0, 1)], 20)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(0, 6), st.integers(0, 3)), max_size=5))
def test_every_token_comes_once_whatever_crashes(folder: Path, lives: list[tuple[int, int, int]]) -> None:
    """The sequences are those of a run without faults; they hold every token of every sample once."""
    used: list[list[int]] = []
    states: list[Any] = []
    for ranks, steps, lost in [*lives, (1, 20, 0)]:
        each = [packed(folder, rank, ranks) for rank in range(ranks)]
        for one in each:
            if states:
                part = one.part
                one.load_state_dict(part.split(part.merge(states), one.dataset.place[0], ranks))
        used += run(each, steps)
        states = [one.state_dict() for one in each]
        run(each, lost)
        ended = all(one.ended for one in each)
        for one in each:
            one.dataset.close()
    assert ended
    assert used == whole(folder)
    samples = [*tokens([{"id": each} for each in range(100)])]
    assert sorted(token for row in used for token in row) == sorted(sum(samples, [END] * 100))


def test_a_batch_that_failed_is_made_again(folder: Path) -> None:
    """A place that does not answer, or a signal: tokens that some lanes had taken by then are not skipped."""
    one, calls, failed = packed(folder, 0, 1), 0, 0

    def sometimes(rows: Any) -> list[list[int]]:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise UnavailableError("no answer")
        return tokens(rows)

    dataset = data.Dataset(data.folder(folder, shuffle=9), 1, lanes=LANES, rank=0, ranks=1, threads=1)
    torn = data.PackedDataset(dataset, sometimes, length=7, batch=2 * LANES, end=END, pad=-1)
    for turn in range(5):
        before = torn.state_dict()
        torn.load_state_dict(before)  # each lane is made into tokens again, from its place on
        calls = 0
        try:
            made, _ = next(torn)
        except UnavailableError:
            failed += 1
            assert torn.state_dict()["lanes"] == before["lanes"]
            made, _ = next(torn)
        assert (made == next(one)[0]).all(), turn
    assert failed >= 2
    for each in (one.dataset, dataset):
        each.close()


def test_a_samples_tokens_stay_together(folder: Path) -> None:
    """In a lane one sample follows the other, each with its end."""
    [one] = [packed(folder, 0, 1, length=1000)]
    rows = run([one], 1)
    for row in rows:
        for part in " ".join(map(str, row)).split(f"{END}")[:-1]:
            found = [int(each) for each in part.split()]
            assert found == [found[0] + at for at in range(len(found))] if found else True


def test_what_cannot_be_packed_is_refused(folder: Path) -> None:
    dataset = data.Dataset(data.folder(folder), 1, lanes=4)
    with pytest.raises(
        SettingsError, match="batch = 6: expected 1 or more tokens, and a multiple of the 4 lanes"
    ):
        data.PackedDataset(dataset, tokens, length=8, batch=6)
    with pytest.raises(SettingsError, match="follow=True"):
        data.PackedDataset(data.Dataset(data.folder(folder, follow=True), 1), tokens, length=8, batch=8)
    with pytest.raises(SettingsError, match="4 lanes for 3 ranks"):
        next(packed(folder, 0, 3))
    with pytest.raises(SettingsError, match=r"\[9, 2, 10000\], the restored position has \[7, 2, 10000\]"):
        packed(folder, 0, 1, length=9).load_state_dict(packed(folder, 0, 1).state_dict())
    with pytest.raises(SettingsError, match=r"no position of lanes \[2, 3\]"):
        packed(folder, 0, 1).load_state_dict(packed(folder, 0, 2).state_dict())
    wrong = data.PackedDataset(dataset, lambda _: [[1]], length=8, batch=4)
    with pytest.raises(SettingsError, match="tokens: 1 of 25 rows"):
        next(wrong)
    assert np.asarray(next(packed(folder, 0, 1))[0]).shape == (8, 7)
