"""Proves the trees of a rank's state (``structure/<rank>.<part>``): what they name is there, and they can be made.

The values are made of tensors without memory, of the shapes and types that were saved, and on the host: a context on a
GPU would take memory from the rank that trains there. What only the training script
can make (a class of its own, a distributed tensor of a class of its own) is not tested, and no failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import STORAGE_TYPES, TensorStorageMetadata

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format import structure
from holdfast.storage.checkpoints.format.decoder import Decoder
from holdfast.storage.checkpoints.format.structure import Node
from holdfast.storage.checkpoints.load.findings import Findings, first_line

_OF_VALUES = (ValueError, TypeError, LookupError, AttributeError)
"""Errors for which a restore would fail as well; others may be of this process, which had no memory."""
_OF_THE_SCRIPT = ("which this script does not have", "can be restored in its old layout only")


def is_tree(name: str) -> bool:
    """Return whether an item is a tree of a rank's state."""
    return name.startswith(structure.PREFIX)


def prove_tree(name: str, node: Node, described: Mapping[str, STORAGE_TYPES], found: Findings) -> None:
    """Note what is wrong with one tree.

    Args:
        name: of its item.
        node: as it was loaded.
        described: the items of the checkpoint.
        found: what it is noted in.
    """
    missing = {each for each, _, _ in structure.refs(node)} - described.keys()
    for each in sorted(missing):
        found.wrong(each, "missing: the structure of the state names it, and it was not saved")
    if missing:
        return
    try:
        Decoder(_Items(described), device="cpu").value(node)
    except CheckpointError as error:
        if any(phrase in str(error) for phrase in _OF_THE_SCRIPT):
            found.left_out(name, error)
        else:
            found.wrong(name, error)
    except Exception as error:  # a class's own methods run here, on tensors without elements
        if isinstance(error, _OF_VALUES) and not _of_classes(node):
            found.wrong(name, error)
        else:
            found.left_out(name, f"it is made by a class's own code: {first_line(error)}")


_CLASSES = frozenset(
    (
        "dataclass",
        "namedtuple",
        "enum",
        "instance",
        "@opaque",
        "@subclass",
        "@as",
        "@local",
        "torch.Generator",
    )
)
"""Tags of nodes that classes of the script make, or the driver of a device."""


def _of_classes(node: Any) -> bool:
    return any(tag in _CLASSES for tag, _ in structure.tagged(node))


class _Items(Mapping[str, Tensor]):
    """Tensors without memory, by the names of those that were saved."""

    def __init__(self, described: Mapping[str, STORAGE_TYPES]) -> None:
        self._described = described

    def __getitem__(self, name: str) -> Tensor:
        known = self._described[name]
        if not isinstance(known, TensorStorageMetadata):
            raise CheckpointError(f"{name}: its structure says that it is a tensor, and an object was saved")
        return torch.empty(known.size, dtype=known.properties.dtype, device="meta")

    def __iter__(self) -> Iterator[str]:
        return iter(self._described)

    def __len__(self) -> int:
        return len(self._described)
