"""The step from which to go on, and the source of each rank's state.

The newest step that every rank can reach wins: nothing is lost that need not be. At that step each rank takes its
cheapest source: its own machine's memory, another machine's memory, a disk, S3. Every newer step that was passed
over and every source carries its reason.

When another number of ranks resumes (a job that shrank or grew), the machines' shards do as well, as long as those of
all ranks that saved are there: each is given to one rank to read, where it lies if a rank runs there, and the ranks
exchange what they need (:mod:`holdfast.storage.checkpoints.load.from_ranks`).

Shards of one step that were written in different epochs, or by different calls of ``checkpoint`` (a rank that counts
steps otherwise than the rest), do not belong together, and a newer epoch goes before
an older one: beyond the step from which the newer one started, the older one's history was given up
(:mod:`holdfast.policies.restore.lineage` leaves such shards out beforehand).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.models.checkpoint import RemoteCheckpoint, RestorePlan, Shard, ShardSource, SkippedStep, Tier
from holdfast.policies.join_names import join_names
from holdfast.policies.restore.readers import Readers

Generation = tuple[int, int, int]
"""(epoch, step, number of the call that saved): only shards with all three alike belong together."""


NOTHING = "no usable checkpoint in S3: from scratch"
"""The reason of a plan that found nothing; whether the job may start so, :mod:`holdfast.policies.restore.from_zero`
decides."""


@dataclass
class _Held:
    """Shards and checkpoints of one generation."""

    ranks: dict[int, list[Shard]] = field(default_factory=lambda: defaultdict(list))
    others: dict[int, dict[int, list[Shard]]] = field(default_factory=lambda: defaultdict(dict))
    """Shards by rank that another number of ranks saved, by that number."""
    remote: RemoteCheckpoint | None = None
    suspect: bool = False

    def missing(self, world_size: int) -> list[int]:
        return [rank for rank in range(world_size) if rank not in self.ranks]

    @property
    def other(self) -> int:
        """The other number of ranks of which all shards are there; 0: of none."""
        return next((size for size, ranks in self.others.items() if len(ranks) == size), 0)


def choose(
    shards: Sequence[Shard],
    remotes: Sequence[RemoteCheckpoint],
    world_size: int,
    machine_of_rank: Mapping[int, str],
    bound: int | None = None,
    *,
    refused: Sequence[str] = (),
    other_sizes: bool = False,
) -> RestorePlan:
    """Pick one step for all ranks.

    Args:
        shards: complete shards on machines that answer, of one job.
        remotes: the job's checkpoints in S3; suspect ones are left out.
        world_size: ranks of the coming epoch.
        machine_of_rank: where each rank will run.
        bound: newest step that may be restored (NaN, silent corruption); None: no bound.
        refused: shards found damaged just before, in words; their sources are not among the ``shards`` any more.
        other_sizes: whether shards that another number of ranks saved may be read from machines. They must outlive the
            first saves of the coming epoch, so ranks and peers need two buffers each.
    """
    held = _by_generation(shards, remotes, world_size)
    skipped: list[SkippedStep] = []
    chosen: Generation | None = None
    for generation in sorted(held, reverse=True):
        if (why := _why_not(held[generation], generation, world_size, bound, other_sizes)) is None:
            chosen = generation
            break
        skipped.append(SkippedStep(step=generation[1], epoch=generation[0], reason=why))
    reasons = [f"refused: {each}" for each in refused] + _summary(held, skipped, bound)
    if chosen is None:
        reasons.append(NOTHING)
        return RestorePlan(step=0, tier=None, skipped=tuple(skipped), reasons=tuple(reasons))
    found = held[chosen]
    if found.remote is not None and found.remote.world_size != world_size and not found.missing(world_size):
        found.remote = None  # the machines have it all, and its parts are not those of this world's ranks
    homes = [machine_of_rank.get(rank, "") for rank in range(world_size)]
    if other_sizes and found.other and found.missing(world_size):
        return _from_other_ranks(found, chosen, homes, skipped, reasons)
    if found.remote is not None and (not found.ranks or found.remote.world_size != world_size):
        return _from_s3(found.remote, held, world_size, skipped, reasons)
    if older := [r.step for r in (each.remote for each in held.values()) if r and r.step <= chosen[1]]:
        reasons.append(f"newest usable step in S3 is {max(older)}, not newer")
    return _from_machines(found, chosen, homes, skipped, reasons)


def _by_generation(
    shards: Iterable[Shard], remotes: Iterable[RemoteCheckpoint], world_size: int
) -> dict[Generation, _Held]:
    held: dict[Generation, _Held] = defaultdict(_Held)
    for shard in shards:
        if shard.tier is Tier.S3:
            continue
        generation = shard.epoch, shard.step, shard.number
        if shard.world_size not in (0, world_size):
            held[generation].others[shard.world_size].setdefault(shard.rank, []).append(shard)
        elif shard.rank < world_size:
            held[generation].ranks[shard.rank].append(shard)
    for remote in remotes:
        found = held[_generation_of(remote, held, world_size)]
        if remote.suspect:
            found.suspect = True
        elif found.remote is None or remote.saved_at > found.remote.saved_at:
            found.remote = remote
    return dict(held)


def _generation_of(remote: RemoteCheckpoint, held: Mapping[Generation, _Held], world_size: int) -> Generation:
    """Return the generation of a checkpoint in S3: its manifest has no number; all ranks had it."""
    same = [each for each in held if each[:2] == (remote.epoch, remote.step)]
    whole = [each for each in same if not held[each].missing(world_size) or held[each].other]
    if whole or len(same) == 1:
        return max(whole or same)
    return remote.epoch, remote.step, -1


def _why_not(
    held: _Held, generation: Generation, world_size: int, bound: int | None, other_sizes: bool
) -> str | None:
    """Return why this generation cannot be restored; None when it can."""
    step = generation[1]
    if bound is not None and step > bound:
        return f"beyond the bound: only steps up to {bound} may be restored"
    if held.remote is not None or not held.missing(world_size) or (other_sizes and held.other):
        return None
    parts = []
    if held.ranks:
        parts.append(f"lacks rank {join_names(held.missing(world_size))}")
    for size, ranks in sorted(held.others.items()):
        parts.append(f"its shards on machines were saved by {size} ranks, not {world_size}")
        if other_sizes:
            parts.append(
                f"lacks rank {join_names(rank for rank in range(size) if rank not in ranks)} of these"
            )
    parts.append("suspect in S3" if held.suspect else "not in S3")
    return "; ".join(parts)


def _summary(
    held: Mapping[Generation, _Held], skipped: Sequence[SkippedStep], bound: int | None
) -> list[str]:
    reasons = []
    if bound is not None:
        newer = len({step for _, step, _ in held if step > bound})
        reasons.append(f"bound: only steps up to {bound} ({newer} newer steps left out)")
    if suspects := sorted({step for (_, step, _), each in held.items() if each.suspect}):
        reasons.append(f"suspect checkpoints in S3 left out: steps {', '.join(map(str, suspects))}")
    within = [each for each in skipped if bound is None or each.step <= bound]
    reasons += [f"step {each.step} of epoch {each.epoch} skipped: {each.reason}" for each in within[:3]]
    if len(within) > 3:
        reasons.append(f"{len(within) - 3} more steps skipped, of which the newest is {within[3].step}")
    return reasons


def _from_s3(
    remote: RemoteCheckpoint,
    held: Mapping[Generation, _Held],
    world_size: int,
    skipped: Sequence[SkippedStep],
    reasons: list[str],
) -> RestorePlan:
    complete = [key for key, each in held.items() if not each.missing(world_size) and key[1] < remote.step]
    if complete:
        reasons.append(f"S3 has step {remote.step}, newer than step {max(complete)[1]} in memory")
    elif not any(each.ranks for each in held.values()):
        reasons.append("no usable shards in memory")
    reasons.append(f"step {remote.step} from S3 ({remote.key})")
    if remote.world_size != world_size:
        reasons.append(f"it was saved by {remote.world_size} ranks and is read by {world_size}")
    return RestorePlan(
        step=remote.step,
        epoch=remote.epoch,
        tier=Tier.S3,
        remote=remote,
        skipped=tuple(skipped),
        reasons=tuple(reasons),
    )


def _from_machines(
    found: _Held,
    generation: Generation,
    homes: Sequence[str],
    skipped: Sequence[SkippedStep],
    reasons: list[str],
) -> RestorePlan:
    epoch, step, _ = generation
    sources: list[ShardSource] = []
    fallbacks: list[ShardSource] = []
    for rank, home in enumerate(homes):
        first, *others = _sources(rank, found.ranks.get(rank, ()), home, found.remote)
        sources.append(first)
        fallbacks += others
    alone = [source.rank for source in sources if source.tier is Tier.S3]
    on_disk = [source.rank for source in sources if source.tier is Tier.DISK]
    reasons.append(
        f"step {step} of epoch {epoch} is {'on machines' if on_disk else 'in memory'} for all {len(homes)} ranks"
        if not alone
        else f"step {step} of epoch {epoch} is on machines for {len(homes) - len(alone)} of {len(homes)} ranks; "
        f"rank {join_names(alone)} from S3"
    )
    if on_disk:
        reasons.append(f"from a disk, in no machine's memory: rank {join_names(on_disk)}")
    fetched = [each for each in sources if each.machine and each.machine != homes[each.rank]]
    if fetched:
        named = join_names(f"{source.rank} from {source.machine}" for source in fetched)
        reasons.append(f"fetched from other machines: rank {named}")
    return RestorePlan(
        step=step,
        epoch=epoch,
        tier=Tier.MEMORY,
        sources=tuple(sources),
        fallbacks=tuple(fallbacks),
        remote=found.remote,
        skipped=tuple(skipped),
        reasons=tuple(reasons),
    )


def _from_other_ranks(
    found: _Held,
    generation: Generation,
    homes: Sequence[str],
    skipped: Sequence[SkippedStep],
    reasons: list[str],
) -> RestorePlan:
    """Give each shard to a rank on the machine that has it, or else to the rank with the fewest."""
    epoch, step, _ = generation
    size, readers = found.other, Readers(homes)
    sources: list[ShardSource] = []
    fallbacks: list[ShardSource] = []
    for rank, shards in sorted(found.others[size].items()):
        ordered = sorted(shards, key=lambda each: (not readers.on(each.machine), *_cost(each, each.machine)))
        reader = readers.take(ordered[0].machine)
        first, *others = _shard_sources(rank, ordered, homes[reader], reader)
        sources.append(first)
        fallbacks += others
    reasons.append(
        f"step {step} of epoch {epoch} is on machines for all {size} ranks that saved it; {len(homes)} ranks read it"
    )
    return RestorePlan(
        step=step,
        epoch=epoch,
        tier=Tier.MEMORY,
        sources=tuple(sources),
        fallbacks=tuple(fallbacks),
        remote=found.remote,
        saved_by=size,
        skipped=tuple(skipped),
        reasons=tuple(reasons),
    )


def _sources(
    rank: int, shards: Iterable[Shard], home: str, remote: RemoteCheckpoint | None
) -> list[ShardSource]:
    """Return every source of one rank, cheapest first; S3 only if the whole checkpoint lies there at that step."""
    sources = _shard_sources(rank, sorted(shards, key=lambda shard: _cost(shard, home)), home)
    if remote is not None:
        why = "if the machines' shards are refused" if sources else "no machine has its shard of this step"
        sources.append(ShardSource(rank=rank, machine="", tier=Tier.S3, reason=why))
    return sources


def _shard_sources(
    rank: int, ordered: Sequence[Shard], home: str, reader: int | None = None
) -> list[ShardSource]:
    return [
        ShardSource(
            rank=rank,
            machine=shard.machine,
            tier=shard.tier,
            reason=_why_this(shard, home, ordered[0]),
            reader=reader,
        )
        for shard in ordered
    ]


_ORDER = {Tier.MEMORY: 0, Tier.PEER: 1, Tier.DISK: 2}


def _cost(shard: Shard, home: str) -> tuple[bool, bool, int, str]:
    """Order memory before disk; the rank's own machine before others; the writer's memory before a copy; by name."""
    return shard.tier is Tier.DISK, shard.machine != home, _ORDER[shard.tier], shard.machine


def _why_this(shard: Shard, home: str, first: Shard) -> str:
    if shard is not first:
        return f"if the shard on {first.machine} is refused"
    where = {
        Tier.MEMORY: f"the memory of {shard.machine}",
        Tier.PEER: f"the copy in the memory of {shard.machine}",
        Tier.DISK: f"the disk of {shard.machine}",
    }[shard.tier]
    if shard.tier is Tier.DISK:
        return f"{where}: no machine has it in memory"
    if shard.machine == home:
        return f"{where}, where the rank runs"
    return f"{where}: {home or 'its machine'} does not have it"


def machines(plan: RestorePlan) -> tuple[str, ...]:
    """Return the machines that the plan may fetch shards from, by name."""
    return tuple(sorted({each.machine for each in (*plan.sources, *plan.fallbacks) if each.machine}))


def explain(plan: RestorePlan, most: int = 20) -> tuple[str, ...]:
    """Describe the plan, bounded: newer steps that were skipped, then the sources, ranks of one reason together."""
    lines = [f"step {each.step} of epoch {each.epoch} skipped: {each.reason}" for each in plan.skipped]
    by_reason: dict[str, list[int]] = defaultdict(list)
    for source in plan.sources:
        by_reason[f"{source.tier}: {source.reason}"].append(source.rank)
    taken = [f"rank {join_names(ranks)} from {reason}" for reason, ranks in by_reason.items()]
    return _bounded(lines, most, "steps") + _bounded(taken, most, "groups of ranks")


def _bounded(lines: Sequence[str], most: int, what: str) -> tuple[str, ...]:
    more = (f"and {len(lines) - most} more {what}",) if len(lines) > most else ()
    return (*lines[:most], *more)
