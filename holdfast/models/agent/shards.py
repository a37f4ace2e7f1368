"""Commands about what a machine holds of a job's state."""

from __future__ import annotations

from pydantic import Field

from holdfast.models.base import Frozen, Step
from holdfast.models.checkpoint import Tier
from holdfast.models.names import Incarnation, KeyOrNone, Rank, RunName


class Mirror(Frozen):
    """Send each shard that this machine's ranks save to one more machine, besides the peer, for a while."""

    job: RunName
    epoch: int
    incarnation: Incarnation
    address: str
    """Data address of that machine."""
    keep_s: float = Field(gt=0, le=3600)


class Persist(Frozen):
    """Upload this machine's shards of one step to the object store, whether or not the step is due.

    Answered when they cannot be overwritten or forgotten any more; the upload goes on by itself.
    """

    job: RunName
    epoch: int
    """The job's newest epoch."""
    incarnation: Incarnation
    step: Step
    shard_epoch: int
    """Epoch that saved the step."""
    world_size: int
    """Of that epoch."""
    ranks: tuple[Rank, ...]
    """Ranks whose shards are meant; with rank 0 the machine also completes the checkpoint when all parts are there."""


class Prove(Frozen):
    """Prove that what this machine holds of a job restores: now, regardless of earlier results. Changes nothing.

    The newest shard of each of ``ranks`` in ``tier``; or, with ``key``, that checkpoint in S3.
    """

    job: RunName
    incarnation: Incarnation
    tier: Tier = Tier.MEMORY
    ranks: tuple[Rank, ...] = ()
    """Empty: all of the job that lie here."""
    step: int = 0
    """Of the checkpoint in S3."""
    epoch: int = 0
    """The one that saved it."""
    key: KeyOrNone = ""
    """Its prefix."""
    trusting: bool = False
    """Classes that the script does not allow count as not tested, instead of wrong: a script can be fixed."""
    timeout_s: float = Field(600.0, gt=0)
