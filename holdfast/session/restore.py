"""Brings a rank's state back, at the world size it was saved at or at another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from holdfast.session import rng
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints import reader


def restore(state: Mapping[str, Any], path: Path, rank: int) -> None:
    """Load a shard file or a checkpoint directory into ``state`` and the process's random state.

    At another world size a rank without random state of its own derives one from that of ``rank % saved``.

    Raises:
        CheckpointError: the checkpoint is torn, missing, or does not fit ``state``.
    """
    tree = StateTree(state)
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

    loaded = reader.load(path, template)
    tree.load(loaded)
    if random_key:
        rng.apply(loaded[random_key], reseed_as=None if random_key == rng.key(rank) else rank)
