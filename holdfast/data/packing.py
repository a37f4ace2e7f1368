"""Sequences of a fixed length, packed from samples of any length, that go on exactly after a restore at any ranks.

Each lane is packed by itself. What stands in its buffer follows from two numbers: the sample that the next sequence
begins in, and how many of that sample's tokens are used. So the state is two numbers per lane and no tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.data.dataset import Dataset
from holdfast.data.deal import Pick, dealt
from holdfast.errors import SettingsError

Tokens = NDArray[np.integer[Any]]
_AHEAD = 64
"""Samples of a lane that are made into tokens at once."""


class PackedDataset:
    """Batches of token sequences of one length: samples one after the other, cut where a sequence is full.

    A step has ``batch`` sequences, as many of each lane; a rank packs whole lanes, so ``lanes`` of the data set must
    be a multiple of the number of ranks. In the state given to the Session it stands as ``packed.part``, since each
    rank knows the position of its own lanes: that part is loaded at any number of ranks.
    """

    def __init__(
        self,
        dataset: Dataset,
        tokens: Callable[[Any], Sequence[Sequence[int]]],
        *,
        length: int,
        batch: int,
        end: int | None = None,
        pad: int = 0,
    ) -> None:
        """Pack the samples of ``dataset``, from their beginning.

        Args:
            dataset: the samples; its own batch and position have no part in it.
            tokens: returns the tokens of each of some rows; always the same ones.
            length: tokens of a sequence.
            batch: sequences of a step, of all ranks together: a multiple of the lanes.
            end: token after each sample; None: none.
            pad: fills the last sequence of a lane, and those of a lane that is used up before others.

        Raises:
            SettingsError: a number is out of range, or the data is followed.
        """
        if length < 1 or batch < 1 or batch % dataset.lanes:
            raise SettingsError(
                f"PackedDataset: length = {length}, batch = {batch}: expected 1 or more tokens, and a multiple of the "
                f"{dataset.lanes} lanes"
            )
        if dataset.follows:
            raise SettingsError(
                "PackedDataset: a source with follow=True: its lanes have no end that all ranks see"
            )
        self.dataset = dataset
        self._tokens, self._length, self._each = tokens, length, batch // dataset.lanes
        self._end, self._pad = end, pad
        self._lanes: dict[int, _Lane] = {}
        self._places: dict[int, tuple[int, int]] = {}

    @property
    def mine(self) -> range:
        """The lanes of this rank.

        Raises:
            SettingsError: the lanes are no multiple of the number of ranks.
        """
        rank, ranks = self.dataset.place
        if self.dataset.lanes % ranks:
            raise SettingsError(
                f"PackedDataset: {self.dataset.lanes} lanes for {ranks} ranks: expected a multiple (Dataset(lanes=))"
            )
        each = self.dataset.lanes // ranks
        return range(rank * each, (rank + 1) * each)

    @property
    def ended(self) -> bool:
        """Whether all lanes of this rank are used up: further batches are padding. Other ranks may have some left."""
        return all(self._lane(lane).ended for lane in self.mine)

    def __iter__(self) -> Iterator[tuple[Tokens, NDArray[np.bool_]]]:
        """Go on from the position; a batch counts as taken from the moment it is handed out. Without end."""
        return self

    def __next__(self) -> tuple[Tokens, NDArray[np.bool_]]:
        """Return this rank's sequences of the next step, and where they hold tokens of samples (not padding)."""
        shape = len(self.mine) * self._each, self._length
        tokens, real = np.full(shape, self._pad, dtype=np.int64), np.zeros(shape, dtype=bool)
        before = {number: self._lane(number).place for number in self.mine}
        row = 0
        try:
            for number in before:
                lane = self._lane(number)
                for _ in range(self._each):
                    content = lane.take(self._length)
                    tokens[row, : len(content)], real[row, : len(content)] = content, True
                    row += 1
        except BaseException:
            # Nothing was handed out: the next call, or a save, begins where this one did.
            self._places, self._lanes = {**self._places, **before}, {}
            raise
        return tokens, real

    @property
    def part(self) -> Any:
        """This, as a part of the state given to the Session."""
        from holdfast.session.part import Part  # noqa: PLC0415  (torch)

        return Part(self, merge=self.merge, split=lambda whole, _rank, _ranks: whole)

    def state_dict(self) -> dict[str, Any]:
        """Return the positions of this rank's lanes, and the data set's state."""
        lanes = {number: self._lane(number).place for number in self.mine}
        return {
            "lanes": [[number, *place] for number, place in lanes.items()],
            "form": [self._length, self._each, -1 if self._end is None else self._end],
            "dataset": self.dataset.state_dict(),
        }

    @staticmethod
    def merge(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return one state of all ranks' states."""
        lanes = {lane: places for state in states for lane, *places in state["lanes"]}
        return {**states[0], "lanes": [[lane, *places] for lane, places in sorted(lanes.items())]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: of this rank, or of :meth:`merge`.

        Raises:
            SettingsError: sequences are of another form, or the state does not have all lanes of this rank.
        """
        form = [self._length, self._each, -1 if self._end is None else self._end]
        if list(state["form"]) != form:
            raise SettingsError(
                f"PackedDataset: length, sequences per lane and end are {form}, the restored position has "
                f"{list(state['form'])}: tokens would be skipped or repeated"
            )
        self.dataset.load_state_dict(state["dataset"])
        self._lanes = {}
        self._places = {number: (sample, offset) for number, sample, offset in state["lanes"]}
        if self._places and (missing := set(self.mine) - set(self._places)):
            raise SettingsError(
                f"PackedDataset: the state has no position of lanes {sorted(missing)}: at another number of ranks give "
                "the Session packed.part, or load merge() of all ranks' states"
            )

    def _lane(self, number: int) -> _Lane:
        if number not in self._lanes:
            sample, offset = self._places.get(number, (0, 0))
            self._lanes[number] = _Lane(self._brought(number), sample, offset)
        return self._lanes[number]

    def _brought(self, number: int) -> Callable[[int], list[Tokens]]:
        def bring(first: int) -> list[Tokens]:
            total = self.dataset.plan.total
            last = (
                first + _AHEAD
                if total is None
                else min(first + _AHEAD, dealt(total, number, self.dataset.lanes))
            )
            if first >= last:
                return []
            end = [] if self._end is None else [self._end]
            made = self._tokens(self.dataset.lane(Pick(number, first, last)))
            if len(made) != last - first:
                raise SettingsError(
                    f"tokens: {len(made)} of {last - first} rows: expected as many as it was given"
                )
            return [np.concatenate([np.asarray(each, dtype=np.int64), end]).astype(np.int64) for each in made]

        return bring


class _Lane:
    """The tokens of one lane, from a place on."""

    def __init__(self, bring: Callable[[int], list[Tokens]], sample: int, offset: int) -> None:
        self._bring, self._next, self._offset = bring, sample, offset
        self._held: list[Tokens] = []
        self._sample = sample

    @property
    def place(self) -> tuple[int, int]:
        """The sample that comes next, and its tokens that were used."""
        return self._sample, self._offset

    @property
    def ended(self) -> bool:
        """Whether there is no more."""
        return not self._fill()

    def take(self, length: int) -> Tokens:
        """Return the next tokens: fewer at the end."""
        found = []
        while length and self._fill():
            part = self._held[0][self._offset : self._offset + length]
            found.append(part)
            length -= len(part)
            self._offset += len(part)
        self._fill()
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def _fill(self) -> bool:
        """Hold a sample that has tokens left; False: there is none."""
        while True:
            while self._held and self._offset >= len(self._held[0]):
                self._held.pop(0)
                self._sample, self._offset = self._sample + 1, 0
            if self._held:
                return True
            self._held = self._bring(self._next)
            self._next += len(self._held)
            if not self._held:
                return False
