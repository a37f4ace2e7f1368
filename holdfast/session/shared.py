"""Which large tensors, beside those of modules and optimizers, are equal on all ranks, so that one is saved."""

from __future__ import annotations

import torch
import xxhash
from torch import Tensor
from torch import distributed as dist

from holdfast.session.state import StateTree

Told = tuple[tuple[int, ...], str, int]
"""Shape, type, and hash of the elements; a hash of 0: all elements are the same, which says nothing."""


def share_equal(tree: StateTree) -> None:
    """Find out which tensors of ``tree`` may be saved once. Collective, when there is more than one rank.

    A tensor whose elements are all the same (a counter of zeros, an empty buffer) may differ at the next step, and is
    saved for each rank.
    """
    tree.flat()
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    mine = {name: _told(each) for name, each in tree.placing.candidates.items()}
    told: list[dict[str, Told]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(told, mine)
    tree.placing.shared.clear()
    tree.placing.shared |= equal(told)


def equal(told: list[dict[str, Told]]) -> set[str]:
    """Names that mean the same on every rank that has them."""
    first: dict[str, Told] = {}
    unequal: set[str] = set()
    holders: dict[str, int] = {}
    for each in told:
        for name, what in each.items():
            holders[name] = holders.get(name, 0) + 1
            if first.setdefault(name, what) != what:
                unequal.add(name)
    return {
        name for name, what in first.items() if name not in unequal and (what[2] != 0 or holders[name] == 1)
    }


def _told(tensor: Tensor) -> Told:
    held = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    raw = held.reshape(-1).view(torch.uint8) if held.numel() else torch.empty(0, dtype=torch.uint8)
    same = bool((held.reshape(-1) == held.reshape(-1)[:1]).all()) if held.numel() else True
    digest = 0 if same else xxhash.xxh3_64_intdigest(raw.numpy().data) or 1
    return tuple(tensor.shape), str(tensor.dtype), digest
