"""The plan of all ranks, made on rank 0 from their descriptions: what each saves, and the global ``.metadata``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.errors import ScriptRefusedError
from holdfast.storage.checkpoints.format import metadata_pickle
from holdfast.storage.checkpoints.format.describe import Description, ItemKind, Outline
from holdfast.storage.checkpoints.format.layout import ALIGNMENT, zip_form
from holdfast.storage.checkpoints.format.sharing import Ints, Items, Pieces, share_out


@dataclass(frozen=True)
class Assignment:
    """The items that one rank saves: rows ``start`` to ``stop`` of its item ``item``, [K] each."""

    item: Ints
    start: Ints
    stop: Ints
    differing: tuple[str, ...] = ()
    """Objects whose content differs between ranks under one name: only one rank's goes into the checkpoint."""


@dataclass
class GlobalPlan:
    """Made once per plan on rank 0."""

    kinds: list[ItemKind]
    """By number of the name."""
    planner_data: dict[str, object]
    items: Items
    pieces: Pieces
    first_item: Ints
    """[R + 1] where each rank's items begin."""
    differing: tuple[str, ...] = ()
    _sizes: Ints = field(init=False)

    def __post_init__(self) -> None:
        """Sizes of the pieces' boxes."""
        self._sizes = self.items.boxes[self.pieces.item, 1].copy()
        self._sizes[:, 0] = self.pieces.stop - self.pieces.start

    def assignments(self) -> list[Assignment]:
        """Return, for each rank, what it saves."""
        cuts = np.searchsorted(self.pieces.item, self.first_item)
        return [
            Assignment(
                self.pieces.item[a:b] - begin, self.pieces.start[a:b], self.pieces.stop[a:b], self.differing
            )
            for a, b, begin in zip(cuts[:-1], cuts[1:], self.first_item[:-1], strict=True)
        ]

    def check(self) -> None:
        """Refuse boxes that do not make up their tensors.

        Raises:
            ScriptRefusedError: naming the tensor.
        """
        names = self.items.name[self.pieces.item]
        saved = np.bincount(names, weights=self._sizes.prod(axis=1), minlength=len(self.kinds))
        for number, kind in enumerate(self.kinds):
            if kind.size is not None and saved[number] != kind.size.numel():
                raise ScriptRefusedError(
                    f"state {kind.fqn!r}: the parts that the ranks hold make up {saved[number]:.0f} of "
                    f"{kind.size.numel()} elements. A sharded tensor must be covered once by all ranks."
                )

    def write_metadata(self, plan: str, out: BinaryIO) -> None:
        """Write the checkpoint's ``.metadata``, as stock torch.distributed.checkpoint reads it."""
        metadata_pickle.write(self.table(), plan, out)

    def table(self) -> metadata_pickle.Table:
        """Return all boxes with their places: what both forms of the metadata are written from."""
        at, length = self._places()
        offsets = self.items.boxes[self.pieces.item, 0].copy()
        offsets[:, 0] += self.pieces.start
        return metadata_pickle.Table(
            kinds=self.kinds,
            files=[f"__{rank}_0.distcp" for rank in range(len(self.first_item) - 1)],
            planner_data=self.planner_data,
            name=self.items.name[self.pieces.item],
            file=self.items.rank[self.pieces.item],
            offsets=offsets,
            sizes=self._sizes,
            at=at,
            nbytes=length,
        )

    def _places(self) -> tuple[Ints, Ints]:
        """Return where each piece lies in its rank's file, and how long it is."""
        length = self._lengths()
        room = -(-length // ALIGNMENT) * ALIGNMENT
        end = np.cumsum(room)
        cuts = np.searchsorted(self.pieces.item, self.first_item)
        before = np.concatenate([[0], end])[cuts[:-1]]
        return end - room - np.repeat(before, np.diff(cuts)), length

    def _lengths(self) -> Ints:
        names = self.items.name[self.pieces.item]
        length = self.items.row_nbytes[self.pieces.item]
        form = self._forms()[names]
        tensors = np.flatnonzero(form >= 0)
        shapes, which = _distinct(np.concatenate([form[tensors, None], self._sizes[tensors]], axis=1))
        lengths = np.empty(len(shapes), np.int64)
        for number, (name, shape) in enumerate(
            zip(names[tensors[shapes]], self._sizes[tensors[shapes]], strict=True)
        ):
            kind = self.kinds[name]
            assert kind.size is not None
            assert kind.properties is not None
            lengths[number] = zip_form(
                torch.Size(shape[: len(kind.size)].tolist()), kind.properties.dtype
            ).nbytes
        length[tensors] = lengths[which]
        return length

    def _forms(self) -> Ints:
        """By number of the name: a number for dtype and dimensions; -1 for an object."""
        known: dict[object, int] = {}
        return np.array(
            [
                -1
                if kind.size is None or kind.properties is None
                else known.setdefault((kind.properties.dtype, len(kind.size)), len(known))
                for kind in self.kinds
            ],
            np.int64,
        )


def _distinct(rows: Ints) -> tuple[Ints, NDArray[np.intp]]:
    """Return an index of each distinct row, and for every row which of these it is."""
    order = np.lexsort(rows.T)
    changed = np.any(np.diff(rows[order], axis=0) != 0, axis=1)
    number = np.concatenate([np.zeros(min(1, len(order)), np.intp), np.cumsum(changed)])
    which = np.empty(len(order), np.intp)
    which[order] = number
    first = order[np.concatenate([np.zeros(min(1, len(order)), np.intp), np.flatnonzero(changed) + 1])]
    return first, which


def plan_globally(described: Sequence[Description], outlines: Mapping[str, Outline]) -> GlobalPlan:
    """Share out what all ranks described.

    Args:
        described: by rank.
        outlines: by digest, each outline that occurs.

    Raises:
        ScriptRefusedError: two ranks disagree about a tensor, or the parts do not make up a tensor.
    """
    names = _Names()
    shared = {digest: names.numbers(outline) for digest, outline in outlines.items()}
    name = [part for each in described for part in (shared[each.digest], names.numbers(each.private))]
    count = np.array([len(each.row_nbytes) for each in described], np.int64)
    items = Items(
        rank=np.repeat(np.arange(len(described)), count),
        name=np.concatenate(name),
        boxes=_stack([each.boxes for each in described]),
        row_nbytes=np.concatenate([each.row_nbytes for each in described]),
    )
    machines = {machine: number for number, machine in enumerate(dict.fromkeys(d.machine for d in described))}
    plan = GlobalPlan(
        kinds=names.kinds,
        planner_data=names.planner_data,
        items=items,
        pieces=share_out(items, np.array([machines[each.machine] for each in described], np.int64)),
        first_item=np.concatenate([[0], np.cumsum(count)]),
        differing=_differing(names.kinds, items, np.concatenate([each.contents for each in described])),
    )
    plan.check()
    return plan


class _Names:
    """Numbers the names of all ranks."""

    def __init__(self) -> None:
        self.kinds: list[ItemKind] = []
        self.planner_data: dict[str, object] = {}
        self._number: dict[str, int] = {}

    def numbers(self, outline: Outline) -> Ints:
        """Return the numbers of an outline's items."""
        self.planner_data.update(outline.planner_data)
        return np.fromiter((self._of(kind) for kind in outline.kinds), np.int64, len(outline.kinds))

    def _of(self, kind: ItemKind) -> int:
        number = self._number.setdefault(kind.fqn, len(self.kinds))
        if number == len(self.kinds):
            self.kinds.append(kind)
        elif not _agree(known := self.kinds[number], kind):
            raise ScriptRefusedError(
                f"state {kind.fqn!r} is {_described(known)} on one rank and {_described(kind)} on another. "
                "What differs from rank to rank needs names that differ."
            )
        return number


def _agree(left: ItemKind, right: ItemKind) -> bool:
    if left.size is None or right.size is None:
        return left.size is right.size
    assert left.properties is not None
    assert right.properties is not None
    return left.size == right.size and left.properties.dtype == right.properties.dtype


def _described(kind: ItemKind) -> str:
    if kind.size is None or kind.properties is None:
        return "an object"
    return f"a tensor {list(kind.size)} of {kind.properties.dtype}"


def _stack(boxes: Sequence[Ints]) -> Ints:
    """Return all ranks' boxes, padded to the largest number of dimensions."""
    widest = max(each.shape[2] for each in boxes)
    padded = []
    for each in boxes:
        if each.shape[2] < widest:
            grown = np.zeros((len(each), 2, widest), np.int64)
            grown[:, 1] = 1
            grown[:, :, : each.shape[2]] = each
            padded.append(grown)
        else:
            padded.append(each)
    return np.concatenate(padded)


def _differing(kinds: Sequence[ItemKind], items: Items, contents: Ints) -> tuple[str, ...]:
    lowest = np.full(len(kinds), np.iinfo(np.int64).max)
    highest = np.full(len(kinds), -1)
    objects = np.flatnonzero(contents)
    np.minimum.at(lowest, items.name[objects], contents[objects])
    np.maximum.at(highest, items.name[objects], contents[objects])
    return tuple(kinds[number].fqn for number in np.flatnonzero(highest > lowest).tolist())
