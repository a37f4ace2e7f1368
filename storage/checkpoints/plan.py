"""Who writes what: one plan for all ranks, made of stock torch.distributed.checkpoint parts.

Every rank lists what it has; rank 0 removes duplicates so that each item is written once and the bytes are
spread evenly; each rank lays its shard file out; rank 0 writes the checkpoint's ``.metadata``. All of it is
collective and happens once per epoch, and again only when the state's structure changes.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, WriteItemType
from torch.distributed.checkpoint.utils import _DistWrapper

from holdfast.storage.checkpoints.buffers import metadata_path
from holdfast.storage.checkpoints.layout import ShardLayout, dump_object, lay_out

_EPOCH_OF = re.compile(r"metadata-(\d+)[.\d]*\.pickle$")


def make_plan(nested: Mapping[str, Any], folder: Path, epoch: int, number: int) -> ShardLayout:
    """Agree on a plan with all ranks and return this rank's layout. Collective.

    Args:
        nested: the state to save, as nested dictionaries.
        folder: this rank's shard folder; rank 0 writes the global ``.metadata`` there.
        epoch: of the job.
        number: of the plan within the epoch, equal on all ranks.
    """
    world = _DistWrapper(None, dist.is_available() and dist.is_initialized(), 0)
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(nested), is_coordinator=world.is_coordinator)
    local = planner.create_local_plan()
    merged: list[Metadata] = []

    def deduplicate(plans: list[SavePlan]) -> list[SavePlan]:
        chosen, metadata = planner.create_global_plan(plans)
        merged.append(metadata)
        return [SavePlan(plan.items) for plan in chosen]

    mine: SavePlan = world.reduce_scatter("plan", lambda: local, deduplicate)
    plan = f"{epoch}.{number}"
    layout = lay_out(plan, mine.items, local, object_sizes(planner.state_dict, local))

    def publish(places: list[dict[MetadataIndex, _StorageInfo]]) -> None:
        metadata = merged[0]
        metadata.storage_data = {index: info for part in places for index, info in part.items()}
        metadata.storage_meta = StorageMeta(save_id=plan)
        metadata.version = CURRENT_DCP_VERSION
        write_metadata(folder, epoch, plan, pickle.dumps(metadata))

    world.all_reduce("lay out", lambda: stock_places(layout, world.get_rank()), publish)
    return layout


def object_sizes(flat: Mapping[str, Any], local: SavePlan) -> dict[MetadataIndex, int]:
    """Bytes of each non-tensor item, pickled."""
    return {
        item.index: len(dump_object(flat[item.index.fqn]))
        for item in local.items
        if item.type == WriteItemType.BYTE_IO
    }


def stock_places(layout: ShardLayout, rank: int) -> dict[MetadataIndex, _StorageInfo]:
    """The owned items as a stock file system reader finds them."""
    name = f"__{rank}_0.distcp"
    return {
        each.index: _StorageInfo(name, each.place.offset, each.place.length)
        for each in layout.items[: layout.owned]
    }


def write_metadata(folder: Path, epoch: int, plan: str, data: bytes) -> None:
    """Put the global ``.metadata`` in place under the epoch's and the plan's name; drop old epochs' files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (plan, str(epoch)):
        fresh = folder / f".metadata-{name}.new"
        fresh.write_bytes(data)
        fresh.rename(metadata_path(folder, name))
    for path in folder.glob("metadata-*.pickle"):
        match = _EPOCH_OF.match(path.name)
        # The epoch before may still be on its way to S3.
        if match and int(match[1]) < epoch - 1:
            path.unlink(missing_ok=True)
