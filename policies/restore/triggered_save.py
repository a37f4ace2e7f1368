"""State worth saving to S3 when ranks died or a stop was ordered, and the machines that upload it.

After Baige: on a failure signal the state in memory is persisted, although no checkpoint was due. Only a step that all
ranks have, and only if it is newer than the checkpoints in S3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from holdfast.models.base import Frozen
from holdfast.models.checkpoint import RemoteCheckpoint, Shard, Tier


class TriggeredSave(Frozen):
    """Machines upload the shards of ``step`` that they hold."""

    step: int
    epoch: int
    """The epoch that saved the step."""
    world_size: int
    """Ranks of that epoch."""
    uploads: dict[str, tuple[int, ...]]
    """Machine -> ranks. The one with rank 0 completes the checkpoint."""


def choose(
    shards: Iterable[Shard],
    remotes: Sequence[RemoteCheckpoint],
    world_size: int,
    bound: int | None = None,
) -> TriggeredSave | None:
    """Choose the newest step in memory that is complete and newer than S3's; None: there is nothing to gain.

    Args:
        shards: in the memory of machines that answer, of the job's present history.
        remotes: in S3, of the job's present history.
        world_size: ranks of the job. Of shards that report another number (the job changed its size and saved nothing
            since) as many make a step complete as saved it.
        bound: newest step that may be trusted; None: no bound.
    """
    held: defaultdict[tuple[int, int, int, int], dict[int, Shard]] = defaultdict(dict)
    for shard in shards:
        size = shard.world_size or world_size
        if shard.tier not in (Tier.MEMORY, Tier.PEER) or not 0 <= shard.rank < size:
            continue
        if bound is None or shard.step <= bound:
            known = held[shard.step, shard.epoch, shard.number, size].get(shard.rank)
            if known is None or _cost(shard) < _cost(known):
                held[shard.step, shard.epoch, shard.number, size][shard.rank] = shard
    complete = [generation for generation, ranks in held.items() if len(ranks) == generation[-1]]
    newest_remote = max((each.step for each in remotes if not each.suspect), default=0)
    if not complete or max(complete)[0] <= newest_remote:
        return None
    newest = max(complete)
    step, epoch, _, size = newest
    uploads: defaultdict[str, list[int]] = defaultdict(list)
    for rank, shard in sorted(held[newest].items()):
        uploads[shard.machine].append(rank)
    return TriggeredSave(
        step=step,
        epoch=epoch,
        world_size=size,
        uploads={machine: tuple(ranks) for machine, ranks in uploads.items()},
    )


def _cost(shard: Shard) -> tuple[bool, str]:
    """Order the machine whose rank wrote it before the one that keeps the copy; then by name."""
    return shard.tier is not Tier.MEMORY, shard.machine
