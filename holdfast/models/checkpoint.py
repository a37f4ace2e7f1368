"""Where the shards of checkpoints lie, and what a restore is told."""

from __future__ import annotations

from enum import StrEnum

from holdfast.models.base import Frozen


class Tier(StrEnum):
    """Where a shard lies, cheapest to restore from first."""

    MEMORY = "memory"
    PEER = "peer"
    S3 = "s3"


class Shard(Frozen):
    """A complete shard of one rank at one step, in the memory of one machine."""

    job: str
    rank: int
    step: int
    epoch: int
    machine: str
    """The machine whose agent holds these bytes."""
    tier: Tier
    """``memory`` on the machine whose rank wrote it, ``peer`` on the machine that keeps a copy."""
    nbytes: int
    digest: str


class RemoteCheckpoint(Frozen):
    """A checkpoint in S3, known by its manifest."""

    job: str
    step: int
    epoch: int
    world_size: int
    key: str
    """Prefix of its objects, without bucket."""
    suspect: bool = False
    suspect_reason: str = ""
    saved_at: float = 0.0
    nbytes: int = 0


class ShardSource(Frozen):
    """Where one rank's shard comes from in a restore."""

    rank: int
    machine: str
    tier: Tier


class RestorePlan(Frozen):
    """The restore policy's answer: one step for all ranks, and its sources."""

    step: int
    """The step after which training resumes; 0: from scratch."""
    tier: Tier | None
    """``memory`` when all shards lie in agents' memory, ``s3``, or None (from scratch)."""
    sources: tuple[ShardSource, ...] = ()
    """One per rank, when ``tier`` is ``memory``."""
    remote: RemoteCheckpoint | None = None
    reasons: tuple[str, ...] = ()


class RestoreOrder(Frozen):
    """What an agent and its ranks are told: part of a start command."""

    step: int = 0
    tier: Tier | None = None
    sources: tuple[ShardSource, ...] = ()
    """For the ranks of this machine."""
    key: str = ""
    """S3 prefix, when ``tier`` is ``s3``."""
