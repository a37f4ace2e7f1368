"""Restores a rank's state, at the world size it was saved at or at another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import distributed as dist
from torch.distributed.checkpoint.metadata import Metadata

from holdfast.errors import CheckpointError
from holdfast.session import common_values, rng, unstructured
from holdfast.session.known import Known
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints.format import structure
from holdfast.storage.checkpoints.load import reader
from holdfast.storage.checkpoints.load.exchange import Exchange
from holdfast.storage.checkpoints.load.reader import Template
from holdfast.storage.checkpoints.remote.remote_reader import LoadReport, RemoteReader

Load = Callable[[Template], dict[str, Any]]
"""Loads what a checkpoint holds into the dictionaries that the template makes."""

State = Mapping[str, Any] | StateTree


def restore(state: State, path: Path, rank: int, *, verified: bool = False) -> None:
    """Load a shard file or a checkpoint directory into ``state`` and the process's random state.

    Args:
        state: name to module, optimizer or other ``Stateful``; or the tree over them.
        path: the file or directory.
        rank: the one whose random state is taken.
        verified: every byte of the shard has just been read and found whole.

    Raises:
        CheckpointError: the checkpoint is torn, missing, or does not fit ``state``.
    """
    checked = verified

    def load(template: Template) -> dict[str, Any]:
        nonlocal checked
        loaded = reader.load(path, template, verified=checked)
        checked = True
        return loaded

    restore_with(load, state, rank, own=not path.is_dir())


def restore_remote(state: State, source: RemoteReader, rank: int) -> LoadReport:
    """Load a checkpoint in S3 into ``state`` and the process's random state; return the cost.

    Raises:
        DamagedError: bytes are missing or not those that were saved.
        CheckpointError: the checkpoint is missing, of another job, or does not fit ``state``.
        UnavailableError: S3 does not answer.
    """
    restore_with(lambda template: reader.load_remote(source, template), state, rank, alone=source.alone)
    assert source.report is not None
    return source.report


def restore_with(
    load: Load, state: State, rank: int, *, own: bool = False, alone: bool = False, random: bool = True
) -> None:
    """Load into ``state`` and the process's random state: first the trees that were saved, then what they name.

    At another world size a rank without random state of its own derives one from that of ``rank % saved``.

    Args:
        load: is called up to three times.
        state: as in :func:`restore`.
        rank: this one.
        own: whether the source is the rank's own shard, which has nothing of the other ranks.
        alone: whether this rank reads for itself; else all ranks read together.
        random: whether the random state is taken.

    Raises:
        CheckpointError: what was saved does not fit; names the path.
    """
    tree = state if isinstance(state, StateTree) else StateTree(state, rank)
    loading = _Loading(tree, rank, own, alone or own, random=random)
    trees = load(loading.trees)
    if not loading.structured:
        unstructured.load(tree, trees)
    else:
        loading.read(trees)
        loading.require_common()
        loaded = load(loading.tensors)
        loading.require_all_taken()
        if loading.needs_more_trees():
            loading.read_more(load(loading.more_trees))
        tree.take(loaded, rank, loading.world_size)
        trees = loaded
    tree.settle()
    if (taken := loading.random_of) is not None:
        rng.apply(rng.found(trees, taken), reseed_as=None if taken == rank else rank)


class _Loading:
    """The requests of one restore."""

    def __init__(self, tree: StateTree, rank: int, own: bool, alone: bool, *, random: bool = True) -> None:
        self.tree, self.rank, self.own, self._takes_random = tree, rank, own, random
        self._exchange = Exchange(alone=alone)
        self.world_size = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        self.structured = True
        self.random_of: int | None = None

    def trees(self, metadata: Metadata) -> dict[str, Any]:
        """Return the items that describe how the state was made; of another program's checkpoint, all of it."""
        names = metadata.state_dict_metadata
        if self._takes_random:
            self.random_of = rng.source(self.rank, rng.saved_ranks(names))
        saved = structure.saved_ranks(names)
        if not saved:
            self.structured = False
            return unstructured.template(self.tree) | self._random(metadata)
        self.source = self.rank if self.rank in saved else saved[self.rank % len(saved)]
        self._exact = self.own or len(saved) == self.world_size
        wanted = self.tree.wanted(saved, self.source, names, exact=self._exact)
        if not self._exact:
            share = saved[self._exchange.rank :: self._exchange.size]
            wanted += common_values.trees_of(self.tree.strict_optimizers(), share, names)
        return dict.fromkeys(wanted)

    def read(self, trees: Mapping[str, Any]) -> None:
        """Take the answer to :meth:`trees`."""
        self._trees = trees

    def require_common(self) -> None:
        """Refuse plain values of optimizers that differ from rank to rank, at another number of ranks. Collective.

        Raises:
            CheckpointError: names the path; on every rank.
        """
        if not self._exact:
            common_values.require_common(self.tree.strict_optimizers(), self._trees, self._exchange)

    def tensors(self, metadata: Metadata) -> dict[str, Any]:
        """Return room for everything that the trees name."""
        begin = f"{structure.key(self.source)}."
        mine = {
            name.removeprefix(begin): node for name, node in self._trees.items() if name.startswith(begin)
        }
        self._known = known = Known(metadata, mine, own=self._exchange.size == 1)
        self.tree.want(known, self._trees, self.source)
        if self.own:
            self.tree.require_all_read(known)
        return known.targets | self._random(metadata)

    def require_all_taken(self) -> None:
        """Refuse to go on without an item that one rank saved and none takes: the model has lost it. All ranks call it.

        Raises:
            CheckpointError: names it.
        """
        left = self._known.left
        if self._exchange.size == 1 or not self._exchange.any(bool(left)):
            return
        gathered = self._exchange.everywhere(
            (left, {structure.plain_name(name) for name in self._known.targets})
        )
        lost = set().union(*(each for each, _ in gathered)) - set().union(*(taken for _, taken in gathered))
        if lost:
            raise CheckpointError(
                f"{sorted(lost)[0]}: the checkpoint has it, and no rank's model does ({len(lost)} such names). Restore "
                "with the code that saved it, or give holdfast.Part(..., strict=False) to leave it out"
            )

    def needs_more_trees(self) -> bool:
        """Return whether a rank loads part of a module that it did not save: a pipeline stage that was cut elsewhere.

        Names and sizes are in the metadata; which parameters are frozen is in the trees of those that saved them alone.
        All ranks call it. One that reads alone while the others have their own shards does not need it.
        """
        if self._exchange.size == 1 and self.world_size > 1:
            return False
        return self._exchange.any(bool(self.tree.saved_elsewhere()))

    def more_trees(self, metadata: Metadata) -> dict[str, Any]:
        """Return this rank's share of the trees of modules that all ranks saved."""
        saved = structure.saved_ranks(metadata.state_dict_metadata)
        mine = saved[self._exchange.rank :: self._exchange.size]
        names = (f"{structure.key(rank)}.{name}" for rank in mine for name, _ in self.tree.modules())
        return dict.fromkeys(name for name in names if name in metadata.state_dict_metadata)

    def read_more(self, trees: Mapping[str, Any]) -> None:
        """Take the answer to :meth:`more_trees`, of all ranks."""
        found: dict[str, set[str]] = {}
        for name, node in trees.items():
            part = name.removeprefix(structure.PREFIX).split(".", 1)[1]
            found.setdefault(part, set()).update(node.get("frozen", ()))
        frozen: dict[str, set[str]] = {}
        for each in self._exchange.everywhere(found):
            for part, names in each.items():
                frozen.setdefault(part, set()).update(names)
        self.tree.freeze(frozen)

    def _random(self, metadata: Metadata) -> dict[str, Any]:
        if self.random_of is None:
            return {}
        held = rng.items(self.random_of)
        return {name: each for name, each in held.items() if name in metadata.state_dict_metadata}
