"""Brings a rank's state back, at the world size it was saved at or at another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from holdfast.session import rng
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints import reader
from holdfast.storage.checkpoints.reader import Template
from holdfast.storage.checkpoints.remote_reader import LoadReport, RemoteReader

Load = Callable[[Template], dict[str, Any]]
"""Loads what a checkpoint holds into the dictionaries that the template makes."""

State = Mapping[str, Any] | StateTree


def restore(state: State, path: Path, rank: int, *, verified: bool = False) -> None:
    """Load a shard file or a checkpoint directory into ``state`` and the process's random state.

    Args:
        state: name to module, optimizer or other ``Stateful``; or the tree over them.
        path: the file or directory.
        rank: whose random state is taken.
        verified: somebody has just read every byte of the shard and found it whole.

    Raises:
        CheckpointError: the checkpoint is torn, missing, or does not fit ``state``.
    """
    restore_with(lambda template: reader.load(path, template, verified=verified), state, rank)


def restore_remote(state: State, source: RemoteReader, rank: int) -> LoadReport:
    """Load a checkpoint in S3 into ``state`` and the process's random state; what it cost.

    Raises:
        DamagedError: bytes are missing or not those that were saved.
        CheckpointError: the checkpoint is missing, of another job, or does not fit ``state``.
        UnavailableError: S3 does not answer.
    """
    restore_with(lambda template: reader.load_remote(source, template), state, rank)
    assert source.report is not None
    return source.report


def restore_with(load: Load, state: State, rank: int) -> None:
    """Load into ``state`` and the process's random state.

    At another world size a rank without random state of its own derives one from that of ``rank % saved``.
    """
    tree = state if isinstance(state, StateTree) else StateTree(state)
    random_key = ""

    def template(metadata: Metadata) -> dict[str, Any]:
        nonlocal random_key
        names = metadata.state_dict_metadata.keys()
        nested = tree.nested()
        taken = rng.source(rank, rng.saved_ranks(names))
        if taken is not None:
            random_key = rng.key(taken)
            held = rng.capture().items()
            nested[random_key] = {name: each for name, each in held if f"{random_key}.{name}" in names}
        return nested

    loaded = load(template)
    tree.load(loaded)
    tree.settle()
    if random_key:
        rng.apply(loaded[random_key], reseed_as=None if random_key == rng.key(rank) else rank)
