"""Search for tensors that are equal on all ranks, so that one is saved; and checks that they stay so.

Parameters, and what optimizers keep for them, are taken for equal on data-parallel ranks. Buffers of modules need not
be (a batch norm sees other data on each rank), nor the large tensors of loaders: saved once, in parts by several ranks,
they would be restored as a value that no rank ever had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import xxhash
from torch import Tensor
from torch import distributed as dist

from holdfast.session.agreement import Group
from holdfast.session.encoded import Placing
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints.format.item_bytes import bytes_of

Replicated = Sequence[tuple[str, ...]]
"""Names that have to stay equal, for each set of ranks that have the same; none where this rank is not among them."""
MOST_SETS = 100
"""Different sets of ranks, as pipeline stages are, whose tensors are watched: a shard's header has a hash for each."""
Hashes = dict[str, int]
"""By name: a hash of shape, type and elements; negative for a buffer of a module."""


def hashes_of(tree: StateTree, group: Group) -> Hashes | None:
    """Return this rank's report to :func:`share_equal`; None when there is no other rank to report to."""
    tree.flat()
    return None if group.alone else _hashes(tree)


def in_one(hashes: Hashes | None) -> str:
    """Return a rank's report in one text: where that is the same on all ranks, nothing differs."""
    return "" if hashes is None else repr(sorted(hashes.items()))


def share_alike(tree: StateTree, hashes: Hashes | None) -> None:
    """Do what :func:`share_equal` does where all ranks report the same as this one; no exchange."""
    if hashes is not None:
        _settle_on_all(tree, hashes, set())
        tree.forget()


def share_nothing(tree: StateTree) -> None:
    """Take back what :func:`share_alike` did: the ranks are not alike."""
    tree.placing.apart, tree.placing.shared, tree.placing.replicated = set(), set(), []
    tree.forget()


def share_equal(tree: StateTree, hashes: Hashes | None, group: Group) -> None:
    """Find out which tensors of ``tree`` may be saved once. Collective, when there is more than one rank.

    Items that differed once are never saved once again.
    """
    if hashes is None:
        return
    names = sorted(hashes)
    if all(group.same([_name_of(names)])):
        equal = group.same([hashes[name] for name in names])
        unequal = {name for name, same in zip(names, equal, strict=True) if not same}
        _settle_on_all(tree, hashes, unequal)
    else:  # pipeline stages have buffers of their own
        union, holders, unequal = compared(_everywhere(hashes))
        # Where one rank has a large tensor another may have a plain value of the same name.
        single = {name for name, ranks in holders.items() if len(ranks) == 1}
        taken = _everywhere(single & tree.names - hashes.keys())
        settle(tree.placing, union, holders, unequal.union(*taken), dist.get_rank())
    tree.forget()


def _settle_on_all(tree: StateTree, hashes: Hashes, unequal: set[str]) -> None:
    """Settle what all ranks hold under the same names."""
    everyone = frozenset(range(dist.get_world_size()))
    settle(tree.placing, hashes, dict.fromkeys(hashes, everyone), unequal, dist.get_rank())


def _everywhere(mine: Any) -> list[Any]:
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def compared(by_rank: list[Hashes]) -> tuple[Hashes, dict[str, frozenset[int]], set[str]]:
    """Return items of any rank, the ranks that have each, and those that are not the same on all of these."""
    held: dict[str, list[int]] = {}
    for rank, each in enumerate(by_rank):
        for name in each:
            held.setdefault(name, []).append(rank)
    unequal = {name for name, ranks in held.items() if len({by_rank[rank][name] for rank in ranks}) > 1}
    union = {name: by_rank[ranks[0]][name] for name, ranks in held.items()}
    return union, {name: frozenset(ranks) for name, ranks in held.items()}, unequal


def settle(
    placing: Placing, hashes: Hashes, holders: Mapping[str, frozenset[int]], unequal: set[str], rank: int
) -> None:
    """Decide which items are saved once, where each rank's own go, and which have to stay equal."""
    placing.unequal |= unequal
    sets = sorted({holders[name] for name in hashes}, key=sorted)
    placing.unequal |= {name for name in hashes if holders[name] in sets[MOST_SETS:]}
    buffers = {name for name, hashed in hashes.items() if hashed < 0}
    # Where each has its own, the first holder keeps the plain name: stock torch and ranks without one look there.
    mine = {name for name in buffers & placing.unequal if rank in holders[name]}
    placing.apart = {name for name in mine if min(holders[name]) != rank}
    once = hashes.keys() - placing.unequal
    placing.shared = once - buffers
    groups: dict[frozenset[int], list[str]] = {}
    for name in sorted(once):
        if len(holders[name]) > 1:
            groups.setdefault(holders[name], []).append(name)
    placing.replicated = [tuple(names) if rank in ranks else () for ranks, names in groups.items()]


def hash_of(tensor: Tensor) -> int:
    """Return a positive hash of the elements of a tensor on the CPU, in its memory order."""
    return (xxhash.xxh3_64_intdigest(bytes_of(tensor)) >> 2) + 1


def _hashes(tree: StateTree) -> Hashes:
    others = {name: _hash(each) for name, each in tree.placing.candidates.items()}
    return others | {name: -_hash(each) for name, each in tree.buffers().items()}


def _hash(tensor: Tensor) -> int:
    held = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return _number(f"{tuple(held.shape)} {held.dtype} {hash_of(held)}")


def _name_of(names: list[str]) -> int:
    return _number(repr(names))


def _number(text: str) -> int:
    return (xxhash.xxh3_64_intdigest(text.encode()) >> 2) + 1
