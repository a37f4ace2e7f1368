"""Contents of a checkpoint, as the parts of a state ask for them while they make room for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor import empty as distributed_empty
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.structure import OWN, Node, refs, strides
from holdfast.storage.checkpoints.format.tensor_facts import placements_of


@dataclass
class Known:
    """The names of a checkpoint, and this rank's trees of it."""

    metadata: Metadata
    nodes: Mapping[str, Node]
    """Trees by part, saved by this rank (or the one whose place it takes)."""
    targets: dict[str, Any] = field(default_factory=dict)
    """Items to be loaded, by name: filled by the parts."""
    own: bool = True
    """Whether this rank reads it for itself: what does not fit is then for all ranks to find elsewhere."""
    left: set[str] = field(default_factory=set)
    """Names that this rank saved and has no place for now: another rank must have one."""

    def has(self, name: str) -> bool:
        """Return whether the checkpoint has an item of this name."""
        return name in self.metadata.state_dict_metadata

    def tensor(self, name: str) -> tuple[torch.Size, torch.dtype]:
        """Return size and type of a tensor of the checkpoint.

        Raises:
            CheckpointError: it has no such tensor.
        """
        found = self.metadata.state_dict_metadata.get(name)
        if not isinstance(found, TensorStorageMetadata):
            raise CheckpointError(
                f"{name}: the structure of the state names it, but the checkpoint has no such tensor"
            )
        return found.size, found.properties.dtype

    def allocate(
        self,
        name: str,
        device: str,
        placements: Any,
        like: Any = None,
        stride: tuple[int, ...] | None = None,
    ) -> Tensor:
        """Return an empty tensor for the item ``name``.

        Args:
            name: of the item.
            device: on which kind of device it was.
            placements: of a distributed tensor, as they were saved.
            like: the parameter that it belongs to: an item of its size takes its placement.
            stride: how it lay in memory, if not row by row.
        """
        size, dtype = self.tensor(name)
        if name.startswith(OWN):
            like = None  # one rank's part, whatever its size
        if isinstance(like, DTensor) and like.shape == size:
            return _placed_like(like, dtype)
        if isinstance(like, Tensor) and like.shape == size:
            device = str(like.device)
        if placements and isinstance(like, DTensor):
            made = placements_of(placements)
            if made is None or like.device_mesh.ndim != len(made):
                made = tuple(Replicate() for _ in range(like.device_mesh.ndim))
            return distributed_empty(size, dtype=dtype, device_mesh=like.device_mesh, placements=made)
        where = device if device != "meta" else "cpu"
        if stride is not None:
            return torch.empty_strided(size, stride, dtype=dtype, device=where)
        return torch.empty(size, dtype=dtype, device=where)

    def want(self, node: Node, like: Any = None, held: Tensor | None = None) -> None:
        """Make room for every item that a tree refers to.

        Args:
            node: the tree.
            like: as in :meth:`allocate`.
            held: a tensor to load into, when the tree is a single item and it fits.
        """
        lie = dict(strides(node))
        for name, device, placements in refs(node):
            if (
                held is not None
                and isinstance(node, tuple)
                and node[0] == "@ref"
                and fits(held, *self.tensor(name))
            ):
                self.targets[name] = held.detach()
            else:
                self.targets[name] = self.allocate(name, device, placements, like, lie.get(name))

    @cached_property
    def by_path(self) -> Mapping[tuple[Any, ...], dict[Any, str]]:
        """Names by their place in the nested state: first three keys to the rest of the path."""
        found: dict[tuple[Any, ...], dict[Any, str]] = {}
        for name, path in (self.metadata.planner_data or {}).items():
            if len(path) > 3 and self.has(name):
                found.setdefault(tuple(path[:3]), {})[tuple(path[3:])] = name
        return found


def _placed_like(like: DTensor, dtype: torch.dtype) -> DTensor:
    """Return an empty tensor placed as ``like`` is, of torch's own class where ``like``'s local part is of another."""
    held = like._local_tensor.detach()
    if is_traceable_wrapper_subclass(held):
        made = torch.empty_strided(held.shape, held.stride(), dtype=dtype, device=held.device)
    else:
        made = torch.empty_like(held, dtype=dtype)
    return DTensor.from_local(
        made, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def fits(tensor: Tensor, size: torch.Size, dtype: torch.dtype) -> bool:
    """Return whether an item can be loaded into ``tensor`` as it is."""
    return (
        tensor.shape == size
        and tensor.dtype == dtype
        and not tensor.is_meta
        and not (tensor.numel() > 1 and 0 in tensor.stride())
    )
