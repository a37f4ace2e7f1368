"""From which step to go on, and where each rank's state comes from.

The newest step whose shards are all reachable wins: nothing is lost that need not be. At the same step the
cheapest sources win: a rank's own machine's memory, another machine's, then S3.

Shards of one step that were written in different epochs do not belong together, and a newer epoch goes before
an older one: beyond the step from which the newer one started, the older one's history was given up
(:mod:`holdfast.policies.lineage` leaves such shards out beforehand).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from holdfast.models.checkpoint import RemoteCheckpoint, RestorePlan, Shard, ShardSource, Tier

Generation = tuple[int, int]
"""(epoch, step): shards of one step written in different epochs do not belong together."""


def choose(
    shards: Sequence[Shard],
    remotes: Sequence[RemoteCheckpoint],
    world_size: int,
    machine_of_rank: Mapping[int, str],
    bound: int | None = None,
) -> RestorePlan:
    """Pick one step for all ranks.

    Args:
        shards: complete shards in the memory of machines that answer, of one job.
        remotes: the job's checkpoints in S3; suspect ones are left out.
        world_size: ranks of the coming epoch.
        machine_of_rank: where each rank will run.
        bound: newest step that may be restored (NaN, silent corruption); None: no bound.
    """
    reasons: list[str] = []
    in_bound = [shard for shard in shards if bound is None or shard.step <= bound]
    if bound is not None:
        newer = len({shard.step for shard in shards} - {shard.step for shard in in_bound})
        reasons.append(f"bound: only steps up to {bound} ({newer} newer steps in memory left out)")
    complete, missing = _complete(in_bound, world_size)
    memory = max(complete, default=None)
    remote = _newest(remotes, bound, reasons)
    if memory is not None and (remote is None or memory[1] >= remote.step):
        return _from_memory(complete[memory], memory, machine_of_rank, remote, reasons)
    reasons.append(_why_not_memory(in_bound, missing, memory, remote))
    if remote is None:
        reasons.append("no usable checkpoint in S3: from scratch")
        return RestorePlan(step=0, tier=None, reasons=tuple(reasons))
    reasons.append(f"step {remote.step} from S3 ({remote.key})")
    if remote.world_size != world_size:
        reasons.append(f"it was saved by {remote.world_size} ranks and is read by {world_size}")
    return RestorePlan(step=remote.step, tier=Tier.S3, remote=remote, reasons=tuple(reasons))


def _complete(
    shards: Iterable[Shard], world_size: int
) -> tuple[dict[Generation, dict[int, list[Shard]]], dict[Generation, list[int]]]:
    """Generations that have a shard of every rank; and which ranks the others lack."""
    held: dict[Generation, dict[int, list[Shard]]] = defaultdict(lambda: defaultdict(list))
    for shard in shards:
        if shard.tier is not Tier.S3 and shard.rank < world_size:
            held[shard.epoch, shard.step][shard.rank].append(shard)
    missing = {
        generation: [rank for rank in range(world_size) if rank not in ranks]
        for generation, ranks in held.items()
    }
    return {key: ranks for key, ranks in held.items() if not missing[key]}, missing


def _newest(
    remotes: Iterable[RemoteCheckpoint], bound: int | None, reasons: list[str]
) -> RemoteCheckpoint | None:
    listed = list(remotes)
    good = [remote for remote in listed if not remote.suspect and (bound is None or remote.step <= bound)]
    if suspects := sorted(remote.step for remote in listed if remote.suspect):
        reasons.append(f"suspect checkpoints in S3 left out: steps {', '.join(map(str, suspects))}")
    return max(good, key=lambda remote: (remote.step, remote.epoch, remote.saved_at), default=None)


def _from_memory(
    ranks: Mapping[int, Sequence[Shard]],
    generation: Generation,
    machine_of_rank: Mapping[int, str],
    remote: RemoteCheckpoint | None,
    reasons: list[str],
) -> RestorePlan:
    epoch, step = generation
    sources = []
    for rank in sorted(ranks):
        best = min(ranks[rank], key=lambda shard: _cost(shard, machine_of_rank.get(shard.rank)))
        sources.append(ShardSource(rank=rank, machine=best.machine, tier=best.tier))
    fetched = [source for source in sources if source.machine != machine_of_rank.get(source.rank)]
    reasons.append(f"step {step} of epoch {epoch} is in memory for all {len(sources)} ranks")
    if fetched:
        listed = ", ".join(f"{source.rank} from {source.machine}" for source in fetched[:8])
        more = f" and {len(fetched) - 8} more" if len(fetched) > 8 else ""
        reasons.append(f"fetched from other machines: rank {listed}{more}")
    if remote is not None:
        reasons.append(f"newest usable step in S3 is {remote.step}, not newer")
    return RestorePlan(step=step, tier=Tier.MEMORY, sources=tuple(sources), reasons=tuple(reasons))


def _cost(shard: Shard, home: str | None) -> tuple[bool, bool, str]:
    """On the rank's own machine before elsewhere; the writer's memory before a peer's copy; then by name."""
    return shard.machine != home, shard.tier is not Tier.MEMORY, shard.machine


def _why_not_memory(
    shards: Sequence[Shard],
    missing: Mapping[Generation, Sequence[int]],
    memory: Generation | None,
    remote: RemoteCheckpoint | None,
) -> str:
    if memory is not None and remote is not None:
        return f"S3 has step {remote.step}, newer than step {memory[1]} in memory"
    if not shards:
        return "no usable shards in memory"
    newest = max(missing)
    lacking = ", ".join(map(str, missing[newest][:8])) + (", ..." if len(missing[newest]) > 8 else "")
    return f"no step is in memory for every rank (the newest, {newest[1]}, lacks rank {lacking})"
