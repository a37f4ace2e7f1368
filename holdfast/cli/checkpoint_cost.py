"""Prints what a job's checkpoints cost its machines, and what they protect against."""

from __future__ import annotations

from typing import Any

from holdfast.cli.output import print_table, say
from holdfast.models.checkpoint import FirstTier, Tier
from holdfast.models.job import JobSpec
from holdfast.policies.restore import checkpoint_cost, placement
from holdfast.policies.restore.checkpoint_cost import Cost, TierCost
from holdfast.shown import size


def of(spec: JobSpec, rank_nbytes: int | None = None) -> Cost:
    """Return the cost of a job's choices, with its copies placed as its start will place them."""
    backup = placement.backups(spec.machines, spec.ranks_per_machine, spec.parallelism)
    return checkpoint_cost.cost(spec, crosses_groups=backup.crosses_groups, rank_nbytes=rank_nbytes)


def as_json(cost: Cost) -> dict[str, Any]:
    """Return the cost with the sums that the table shows."""
    return cost.model_dump(mode="json") | cost.sums()


def show(cost: Cost) -> None:
    """Print the table, the sums, and what is not protected against."""
    rows = [
        (_name(cost, each), _steps(cost, each), each.copies, _room(cost, each), each.protects)
        for each in cost.tiers
    ]
    print_table("Checkpoints", ("TIER", "STEPS", "COPIES", "PER MACHINE", "PROTECTS AGAINST"), rows, "")
    where = "Memory" if cost.first_tier is FirstTier.MEMORY else "NVMe disk"
    rest, peak = cost.copies.at_rest, cost.copies.at_peak
    say(
        f"{where} of each machine: {_of_machine(cost, rest)} at rest, at most {_of_machine(cost, peak)} while "
        "transfers are under way."
    )
    say("Not protected against:")
    for line in cost.not_protected:
        say(f"  {line}")


def _of_machine(cost: Cost, copies: float) -> str:
    """Return the size of so many copies on a machine, in words: in bytes, or in multiples of a rank's state."""
    nbytes = cost.nbytes(copies)
    return f"{copies * cost.ranks_per_machine:g} x a rank's state" if nbytes is None else size(nbytes)


def _steps(cost: Cost, each: TierCost) -> str:
    paced = cost.max_overhead is not None and each.tier in {Tier.MEMORY, Tier.PEER}
    return f"{'at most ' if paced else ''}every {each.every_steps}"


def _name(cost: Cost, each: TierCost) -> str:
    if each.tier is Tier.MEMORY and cost.first_tier is FirstTier.DISK:
        return "own NVMe"
    if each.tier is Tier.PEER and cost.first_tier is FirstTier.DISK:
        return "peer's NVMe"
    names = {Tier.MEMORY: "own memory", Tier.PEER: "peer's memory", Tier.DISK: "own disk", Tier.S3: "S3"}
    return names[each.tier]


def _room(cost: Cost, each: TierCost) -> str:
    return "none" if each.tier is Tier.S3 else _of_machine(cost, each.copies)
