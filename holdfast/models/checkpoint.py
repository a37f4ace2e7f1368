"""Places of checkpoint shards, and the orders for a restore."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, model_validator

from holdfast.models.base import Frozen, Given
from holdfast.models.names import JobName, KeyOrNone, MachineName, MachineOrNone, ObjectKey, Rank
from holdfast.models.start_from import StartFrom


class Tier(StrEnum):
    """Where a shard lies, cheapest to restore from first."""

    MEMORY = "memory"
    PEER = "peer"
    DISK = "disk"
    S3 = "s3"


class FirstTier(StrEnum):
    """Where ranks save to, and where the peer keeps its copies."""

    MEMORY = "memory"
    """Shared memory: gone with a reboot."""
    DISK = "disk"
    """Memory-mapped files on the machine's own NVMe disk."""


class Copies(Frozen):
    """How many whole copies of one rank's state the first tier of its machine holds.

    Each machine keeps as many copies for another machine as that one keeps for it, so a machine needs this times
    its ranks.
    """

    own: int = Field(2, ge=1, le=2)
    """The rank's own buffers. 1: it is overwritten by each save, once the peers of all ranks have what it holds."""
    peer: int = Field(0, ge=0, le=2)
    """Kept for a rank of another machine."""
    uploads: float = Field(0, ge=0)
    """Lent to an upload, at most: the slot's next save takes new memory meanwhile."""
    disk: int = Field(0, ge=0)
    """Lent to a copy to the disk, at most."""

    @property
    def at_rest(self) -> int:
        """While nothing is under way."""
        return self.own + self.peer

    @property
    def at_peak(self) -> float:
        """While an upload and a copy to the disk are."""
        return self.at_rest + self.uploads + self.disk


class Shard(Frozen):
    """A complete shard of one rank at one step, in the memory (or on the disk) of one machine."""

    job: JobName
    rank: Rank
    step: int
    epoch: int
    machine: MachineName
    """The machine whose agent holds these bytes."""
    tier: Tier
    """``memory`` on the machine whose rank wrote it, ``peer`` on the machine that keeps a copy, ``disk``."""
    nbytes: int
    digest: str
    world_size: int = 0
    """Ranks of the job that saved it; 0: not reported."""
    number: int = 0
    """Of the call that saved it, counted alike on all ranks; shards of one step with other numbers do not match."""


class RemoteCheckpoint(Frozen):
    """A checkpoint in S3, known by its manifest."""

    job: JobName
    step: int
    epoch: int
    world_size: int
    key: ObjectKey
    """Prefix of its objects, without bucket."""
    suspect: bool = False
    suspect_reason: str = ""
    saved_at: float = 0.0
    nbytes: int = 0


class Retention(Given):
    """The rules for which of a job's checkpoints are kept in S3."""

    keep_last: int = Field(3, ge=1, description="Newest checkpoints that may be restored.")
    keep_every: int = Field(
        0, ge=0, description="Also the first checkpoint at or after each multiple of so many steps; 0: none."
    )


class ShardSource(Frozen):
    """Where one rank's shard comes from in a restore."""

    rank: Rank
    machine: MachineOrNone
    """Empty when ``tier`` is ``s3``."""
    tier: Tier
    reason: str = ""
    """Why this source and no cheaper one."""
    address: str = ""
    """``host:port`` of the machine's data port, when the shard has to be fetched from there."""
    reader: Rank | None = None
    """The rank that reads it, when another number of ranks resumes; None: ``rank`` itself."""

    @property
    def read_by(self) -> int:
        """The rank of the coming epoch that reads it."""
        return self.rank if self.reader is None else self.reader


class SkippedStep(Frozen):
    """A step newer than the restored one that was not taken, and why."""

    step: int
    epoch: int
    reason: str


class RestorePlan(Frozen):
    """The restore policy's answer: one step for all ranks, and its sources."""

    step: int
    """The step after which training resumes; 0: from scratch."""
    epoch: int = 0
    """The epoch that saved it."""
    tier: Tier | None
    """``s3`` when all ranks read the checkpoint there, together; ``memory`` when shards lie on machines, as
    ``sources`` lists (some ranks may lack one and read S3 alone); None: from scratch."""
    sources: tuple[ShardSource, ...] = ()
    """The cheapest for each rank, when ``tier`` is ``memory``."""
    fallbacks: tuple[ShardSource, ...] = ()
    """Further sources of the same step, per rank cheapest first: for when the first one is refused."""
    remote: RemoteCheckpoint | None = None
    """The checkpoint of this step in S3, when it is read or may have to be."""
    saved_by: int = 0
    """Ranks whose shards the ``sources`` are, when another number of ranks resumes from them; else 0."""
    start_from: StartFrom | None = None
    """The source of a job that has no state of its own, when ``tier`` is None."""
    skipped: tuple[SkippedStep, ...] = ()
    """Newer steps, newest first."""
    reasons: tuple[str, ...] = ()


class Choice(Frozen):
    """The state that a person wants a job to be restored from."""

    from_scratch: bool = False
    """Start from zero, regardless of what was saved."""
    step: int | None = Field(None, ge=1)
    """A saved step by name, also an older or a suspect one."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Choice:
        if self.from_scratch and self.step is not None:
            raise ValueError(f"from_scratch and step {self.step} exclude each other: choose one")
        return self


class Suspicion(Frozen):
    """States of a job that must not be restored by themselves."""

    from_step: int
    """This step and later ones ..."""
    to_epoch: int
    """... that this epoch or an earlier one saved."""
    reason: str

    def covers(self, epoch: int, step: int) -> bool:
        """Return whether it applies to the state that ``epoch`` saved after ``step``."""
        return step >= self.from_step and epoch <= self.to_epoch


class RestoreOrder(Frozen):
    """The restore order for an agent and its ranks: part of a start command."""

    step: int = 0
    epoch: int = 0
    """The epoch that saved the shards; 0: any."""
    tier: Tier | None = None
    sources: tuple[ShardSource, ...] = ()
    """For the ranks of this machine."""
    fallbacks: tuple[ShardSource, ...] = ()
    """Further sources for these ranks, per rank cheapest first."""
    key: KeyOrNone = ""
    """S3 prefix, when ``tier`` or the tier of a source is ``s3``."""
    start_from: StartFrom | None = None
    """As in :class:`RestorePlan`."""
    saved_by: int = 0
    """As in :class:`RestorePlan`: then each rank reads the sources that name it as their reader, and all exchange."""

    @property
    def has_state(self) -> bool:
        """Whether ranks are given a state; else they start from zero."""
        return self.tier is not None or self.start_from is not None
