"""Loads some items of a checkpoint as a restore does: by its planner and its reader."""

from __future__ import annotations

from typing import Any

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import StorageReader

from holdfast.storage.checkpoints.load.safe_load import SafeLoadPlanner


def load_part(reader: StorageReader, metadata: Metadata, state: dict[str, Any]) -> dict[str, Any]:
    """Fill ``state``, by flat names, with its items alone.

    Args:
        reader: of the file or the checkpoint.
        metadata: all of it.
        state: tensors to fill in place; anything in the place of an object.
    """
    described = {name: metadata.state_dict_metadata[name] for name in state}
    part = Metadata(described, metadata.planner_data, metadata.storage_data)
    planner = SafeLoadPlanner()
    planner.set_up_planner(state, part)
    plan = planner.finish_plan(reader.prepare_local_plan(planner.create_local_plan()))
    reader.set_up_storage_reader(part, is_coordinator=False)
    reader.read_data(plan, planner).wait()
    return state
