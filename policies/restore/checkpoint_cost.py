"""Cost of a job's checkpoint choices on each machine, and the faults that they do and do not protect against."""

from __future__ import annotations

import math

from holdfast.models.base import Frozen
from holdfast.models.checkpoint import Copies, FirstTier, Tier
from holdfast.models.job import CheckpointPolicy, JobSpec


class TierCost(Frozen):
    """One tier of a job."""

    tier: Tier
    every_steps: int
    copies: int
    """Copies of each rank's state on one machine at rest; in S3: least number of whole checkpoints that are kept."""
    protects: str


class Cost(Frozen):
    """Cost of all tiers."""

    first_tier: FirstTier
    copies: Copies
    ranks_per_machine: int
    tiers: tuple[TierCost, ...]
    not_protected: tuple[str, ...]
    max_overhead: float | None = None
    """Share of training time that saves into memory may take: they are made less often where they take more."""
    rank_nbytes: int | None = None
    """Size of one rank's shard; None before the first save."""

    def sums(self) -> dict[str, float | str | None]:
        """Return copies and bytes on one machine, for programs."""
        return {
            "first_tier": self.first_tier.value,
            "rank_nbytes": self.rank_nbytes,
            "copies_at_rest": self.copies.at_rest,
            "copies_at_peak": self.copies.at_peak,
            "machine_nbytes_at_rest": self.nbytes(self.copies.at_rest),
            "machine_nbytes_at_peak": self.nbytes(self.copies.at_peak),
        }

    def nbytes(self, copies: float) -> int | None:
        """Return the bytes that so many copies of each rank's state take on a machine; None before the first save."""
        return (
            None
            if self.rank_nbytes is None
            else math.ceil(copies * self.ranks_per_machine * self.rank_nbytes)
        )


def cost(spec: JobSpec, *, crosses_groups: bool, rank_nbytes: int | None = None) -> Cost:
    """Compute the cost of ``spec``'s choices.

    Args:
        spec: of the job.
        crosses_groups: whether every peer copy lies outside all parallel groups of its ranks.
        rank_nbytes: size of one rank's shard, once known.
    """
    policy, copies = spec.checkpoint, spec.checkpoint.copies(spec.machines)
    k = policy.memory_every_steps
    on_disk = policy.first_tier is FirstTier.DISK
    tiers = [
        TierCost(
            tier=Tier.MEMORY,
            every_steps=k,
            copies=copies.own,
            protects="the death of ranks" + (", a reboot" if on_disk else ""),
        )
    ]
    if copies.peer:
        tiers.append(
            TierCost(
                tier=Tier.PEER, every_steps=k, copies=copies.peer, protects=_by_peer(copies, crosses_groups)
            )
        )
    if every := policy.disk_every_steps:
        tiers.append(TierCost(tier=Tier.DISK, every_steps=every, copies=2, protects="a reboot, a power cut"))
    kept = policy.retention.keep_last
    tiers.append(
        TierCost(
            tier=Tier.S3, every_steps=policy.s3_every_steps, copies=kept, protects="the loss of the cluster"
        )
    )
    return Cost(
        first_tier=policy.first_tier,
        copies=copies,
        ranks_per_machine=spec.ranks_per_machine,
        tiers=tuple(tiers),
        not_protected=_not_protected(policy, copies, spec.machines),
        max_overhead=policy.max_overhead,
        rank_nbytes=rank_nbytes,
    )


def _by_peer(copies: Copies, crosses_groups: bool) -> str:
    what = "the loss of a machine" + (", or of a whole parallel group" if crosses_groups else "")
    return what if copies.peer > 1 else f"{what}, unless its copy was under way"


def _not_protected(policy: CheckpointPolicy, copies: Copies, machines: int) -> tuple[str, ...]:
    found = []
    s3 = f"S3 (up to {policy.s3_every_steps} steps are computed again)"
    survives = policy.first_tier is FirstTier.DISK or policy.disk_every_steps
    if not copies.peer:
        alone = "a job of one machine has no peer to keep copies: it" if machines == 1 else "the job"
        found.append(f"A lost machine: {alone} goes back to {s3}.")
    else:
        found.append(f"A machine and the one that keeps its copies, both lost: back to {s3}.")
    if copies.own == 1:
        found.append(
            "Late peers: no step is saved until they have the one before, or for 10 s; then a second buffer is taken."
        )
    if copies.peer == 1:
        found.append(
            "A machine lost while its copy is under way: the peer's only copy is incomplete, and the job goes back to "
            + (f"the disks, or to {s3}." if policy.disk_every_steps else f"{s3}.")
        )
    if policy.first_tier is FirstTier.DISK and not policy.disk_every_steps:
        found.append(
            "A power cut of all machines: a shard that was not written out is refused by its digest; then back to "
            f"{s3}."
        )
    if not survives:
        found.append(f"A reboot or power cut of all machines: back to {s3}.")
    if (k := policy.memory_every_steps) > 1:
        found.append(f"Any fault costs up to {k - 1} steps: only every {k}th step is saved.")
    if policy.max_overhead is not None:
        found.append(
            "Any fault costs the steps since the last save: saves come less often where they take more than "
            f"{policy.max_overhead:.3g} of the time."
        )
    return tuple(found)
