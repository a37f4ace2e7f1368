"""The save plan: which rank writes what, for all ranks, in the layout of torch.distributed.checkpoint.

Every rank describes what it has; rank 0 shares it out so that each box is written once and the bytes are
spread evenly; each rank lays its shard file out; rank 0 writes the checkpoint's ``.metadata``. All of it is
collective and happens at the first save, and again only when the state's structure changes. A rank that resumes
from a shard file takes its part of the plan from there (:func:`plan_of`).
"""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, create_default_local_save_plan
from torch.distributed.checkpoint.utils import _DistWrapper

from holdfast import durable
from holdfast.errors import CheckpointError, ScriptRefusedError
from holdfast.storage.checkpoints.format import boxes, metadata_pickle, plan_file
from holdfast.storage.checkpoints.format.describe import Description, HeldItems, Outline, describe
from holdfast.storage.checkpoints.format.global_plan import Assignment, GlobalPlan, plan_globally
from holdfast.storage.checkpoints.format.layout import ShardLayout, lay_out, read_layout
from holdfast.storage.checkpoints.format.metadata_pickle import Table
from holdfast.storage.checkpoints.format.safe_metadata import load_metadata
from holdfast.storage.checkpoints.save import buffers
from holdfast.storage.checkpoints.save.buffers import metadata_path

STOCK_BOXES = 1 << 16
"""The most boxes (some ten MiB) for which the stock ``.metadata`` is written with the plan."""

_EPOCH_OF = re.compile(r"metadata-(\d+)[.\d]*\.pickle$")


@dataclass(frozen=True)
class Planned:
    """A rank's part of a plan."""

    layout: ShardLayout
    differing: tuple[str, ...]
    """Objects whose content differs between ranks under one name."""


@dataclass(frozen=True)
class Shared:
    """The result of dividing the state among the ranks."""

    plan: str
    """Its name."""
    mine: Assignment
    whole: GlobalPlan | None
    """On rank 0."""


def make_plan(
    state: Mapping[str, Any],
    folder: Path,
    epoch: int,
    number: int,
    *,
    machine: str = "",
    private: Sequence[str] = (),
    paths: Mapping[str, Sequence[str | int]] | None = None,
) -> Planned:
    """Agree on a plan with all ranks and return this rank's part. Collective.

    Args:
        state: what to save: items by full name when there are ``paths``, else nested dictionaries.
        folder: this rank's shard folder; rank 0 writes the global ``.metadata`` there.
        epoch: of the job.
        number: of the plan within the epoch, equal on all ranks.
        machine: where this rank runs; the bytes are spread over machines as well.
        private: what the names begin with that no other rank has.
        paths: by full name, where in the nested state an item was.

    Raises:
        CheckpointError: ranks disagree about a tensor, or their parts do not make it up.
    """
    held = hold(state, machine=machine, private=private, paths=paths)
    return settled(share_out(held, f"{epoch}.{number}"), held, folder, epoch)


def hold(
    state: Mapping[str, Any],
    *,
    machine: str = "",
    private: Sequence[str] = (),
    paths: Mapping[str, Sequence[str | int]] | None = None,
) -> HeldItems:
    """Describe what this rank holds: the first part of :func:`make_plan`, for this rank alone."""
    # Flat items are whole: torch would look into those that are dictionaries, and drop the empty ones.
    nested = paths is None
    planner = DefaultSavePlanner(flatten_state_dict=nested, flatten_sharded_tensors=nested)
    planner.set_up_planner(dict(state), is_coordinator=_world().is_coordinator)
    local = planner.create_local_plan()
    mappings = (
        planner.mappings if paths is None else {name: tuple(paths.get(name, (name,))) for name in state}
    )
    return describe(local.items, planner.state_dict, mappings, machine, tuple(private))


def share_out(held: HeldItems, plan: str) -> Shared:
    """Share out what all ranks hold: the second part, collective. Fails on all ranks or on none.

    Raises:
        CheckpointError: ranks disagree about a tensor, or their parts do not make it up.
    """
    world = _world()
    digests = world.all_gather_object(held.description.digest)
    outline = held.shared if digests.index(held.description.digest) == world.get_rank() else None
    made: list[GlobalPlan] = []

    def share(described: list[tuple[Description, Outline | None]]) -> list[Assignment]:
        outlines = {each.digest: outline for each, outline in described if outline is not None}
        made.append(plan_globally([each for each, _ in described], outlines))
        return made[0].assignments()

    try:
        mine: Assignment = world.reduce_scatter("plan", lambda: (held.description, outline), share)
    except CheckpointException as error:
        cause = next((cause for cause, _ in error.failures.values()), error)
        kind = ScriptRefusedError if isinstance(cause, ScriptRefusedError) else CheckpointError
        raise kind(f"no plan for the state given to Session.checkpoint(): {cause}") from error
    return Shared(plan, mine, made[0] if made else None)


def settled(shared: Shared, held: HeldItems, folder: Path, epoch: int) -> Planned:
    """Lay out what this rank got: the last part, of this rank alone. Rank 0 writes the global ``.metadata``."""
    plan = shared.plan
    if shared.whole is not None:
        write_metadata(folder, epoch, plan, plan_content(shared.whole.table(), plan))
    return Planned(layout_of(plan, held, shared.mine), shared.mine.differing)


def _world() -> _DistWrapper:
    return _DistWrapper(None, dist.is_available() and dist.is_initialized(), 0)


def plan_content(table: Table, plan: str) -> bytes:
    """Return the content of rank 0's plan file: the stock ``.metadata`` while it is small, then the compact form.

    The stock form is written from the compact one when a checkpoint is published: otherwise a gigabyte of it would lie
    in the shared memory of rank 0's machine and of its peer, and travel with every upload.

    Raises:
        CheckpointError: a place in the nested state cannot be written.
    """
    stock = io.BytesIO()
    if len(table.name) <= STOCK_BOXES:
        metadata_pickle.write(table, plan, stock)
    return plan_file.join(stock.getvalue(), boxes.pack(table, plan))


def plan_of(path: Path, folder: Path, rank: int, world_size: int) -> ShardLayout | None:
    """Return the layout of the shard at ``path``, to save by again; None when ``rank`` cannot.

    Args:
        path: the file that the rank was restored from.
        folder: this rank's shard folder; for rank 0 the plan's global ``.metadata`` must lie there.
        rank: whose file it must be.
        world_size: at which it must have been saved.
    """
    header = buffers.read_header(path)
    if header is None or (header.rank, header.world_size) != (rank, world_size):
        return None
    if rank == 0 and not metadata_path(folder, header.plan).exists():
        return None
    with path.open("rb") as file:
        file.seek(header.meta_offset)
        raw = file.read(header.meta_nbytes)
    metadata = load_metadata(raw, f"shard {path}")
    return read_layout(header.plan, metadata, raw, header.owned_nbytes, header.payload_nbytes)


def fits(layout: ShardLayout, flat: Mapping[str, Any]) -> bool:
    """Return whether the boxes of ``layout`` are those that this rank holds now: shapes, placements and types.

    Args:
        layout: of an earlier epoch.
        flat: the state by full name.
    """
    then = {
        (each.piece.fqn, each.piece.size, each.piece.offsets, each.piece.sizes, each.piece.dtype)
        if each.piece.is_tensor
        else (each.piece.fqn,)
        for each in layout.items
    }
    now: set[tuple[object, ...]] = set()
    for item in create_default_local_save_plan(dict(flat), True).items:
        data = item.tensor_data
        if data is None:
            now.add((item.index.fqn,))
        else:
            now.add((item.index.fqn, data.size, data.chunk.offsets, data.chunk.sizes, data.properties.dtype))
    return then == now


def layout_of(plan: str, held: HeldItems, mine: Assignment) -> ShardLayout:
    """Lay out what a rank holds: first what it was assigned, then the rest."""
    owned = [
        held.piece(*each)
        for each in zip(mine.item.tolist(), mine.start.tolist(), mine.stop.tolist(), strict=True)
    ]
    rows: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for item, start, stop in zip(mine.item.tolist(), mine.start.tolist(), mine.stop.tolist(), strict=True):
        rows[item].append((start, stop))
    rest = [piece for number in range(len(held.items)) for piece in held.rest(number, rows[number])]
    planner_data = held.shared.planner_data | held.description.private.planner_data
    return lay_out(plan, owned, rest, planner_data)


def write_metadata(folder: Path, epoch: int, plan: str, data: bytes | memoryview) -> None:
    """Put the global ``.metadata`` in place under the epoch's and the plan's name; drop those of no use any more."""
    durable.make_folder(folder)
    for name in (plan, str(epoch)):
        durable.write(metadata_path(folder, name), data, "plan")
    used = {metadata_path(folder, header.plan) for _, header in buffers.inventory(folder)}
    for path in set(folder.glob("metadata-*.pickle")) - used:
        match = _EPOCH_OF.match(path.name)
        # The epoch before may still be on its way to S3.
        if match and int(match[1]) < epoch - 1:
            path.unlink(missing_ok=True)
