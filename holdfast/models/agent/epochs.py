"""Commands that begin, hold and end an epoch of ranks, and that prepare the next one."""

from __future__ import annotations

from pydantic import Field

from holdfast.models.base import MAX_GRACE_S, MAX_KEEP_S, MAX_SWITCH_S, SWITCH_S, Frozen, Step
from holdfast.models.checkpoint import Copies, FirstTier, RestoreOrder, Retention
from holdfast.models.names import Incarnation, MachineOrNone, Rank, RunName, Version


class Fence(Frozen):
    """Stop every rank of ``job`` with an epoch up to ``epoch`` and refuse such epochs from now on."""

    job: RunName
    epoch: int
    incarnation: Incarnation
    grace_s: float = Field(0.0, ge=0, le=MAX_GRACE_S)
    """Seconds between SIGTERM and SIGKILL for ranks that handle SIGTERM."""
    keep_s: float = Field(0.0, ge=0, le=MAX_KEEP_S)
    """How long processes of ranks that allow it may wait for the next epoch, out of their training; 0: none may."""
    switch_s: float = Field(SWITCH_S, gt=0, le=MAX_SWITCH_S)
    """How long such a process may take to leave its training; then it is ended."""


class OpenRendezvous(Frozen):
    """Host the rendezvous store for an epoch (asked of the machine of rank 0)."""

    job: RunName
    epoch: int
    incarnation: Incarnation
    world_size: int


class Rendezvous(Frozen):
    """Where the store listens."""

    host: str
    port: int


class Replay(Frozen):
    """Run a few steps from a checkpoint, save nothing, report what came out."""

    group: str
    steps: int = Field(ge=1)


class Start(Frozen):
    """Start this machine's ranks for one epoch. Sent again for the same epoch it changes nothing."""

    job: RunName
    epoch: int
    incarnation: Incarnation
    script: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    code_version: Version
    ranks: tuple[Rank, ...]
    """Global ranks on this machine; local ranks follow their order."""
    world_size: int
    rendezvous: Rendezvous
    restore: RestoreOrder = RestoreOrder()
    peer: str = ""
    """``host:port`` (data address) of the machine that keeps copies of this machine's shards."""
    peer_machine: MachineOrNone = ""
    keeps_ranks: tuple[Rank, ...] | None = None
    """Ranks whose copies this machine keeps; None: not stated (a gateway that is a release older)."""
    s3_every_steps: int = 0
    """0: no checkpoints in S3."""
    disk_every_steps: int = 0
    """0: no copies on the machine's disk."""
    skip_steps: tuple[Step, ...] = ()
    """Steps whose data the script skips."""
    memory_every_steps: int = 1
    """Steps between saves of the ranks."""
    max_overhead: float | None = Field(None, gt=0, lt=1)
    """Largest share of training time that these may take; None: any."""
    copies: Copies = Copies()
    """Of each rank's state, in the first tier."""
    first_tier: FirstTier = FirstTier.MEMORY
    retention: Retention = Retention()
    stop_grace_s: float = Field(0.0, ge=0, le=MAX_GRACE_S)
    """As :attr:`Fence.grace_s`, when the agent itself is asked to end."""
    replay: Replay | None = None
    keep: bool = False
    """Ranks may go on in processes that wait for this epoch."""
    switch_s: float = Field(SWITCH_S, gt=0, le=MAX_SWITCH_S)
    """How long such a process may take to begin this epoch; then a new one takes its place."""
    ahead: bool = False
    """Only by taking over the ranks that were started ahead: refused where they are not there."""


class Ahead(Frozen):
    """Start ranks of the next epoch beside those that train, up to their restore; there they wait for their state.

    Sent again for the same start it keeps them for longer. A :class:`Start` that is the same but for what is restored
    takes them over; a fence of their epoch, or the end of the time, ends them.
    """

    start: Start
    keep_s: float = Field(gt=0, le=3600)
    on_gpus: bool = False
    """Also on a machine with GPUs: what a script makes before its restore takes memory there, beside the training's."""


def store_ahead(job: str) -> str:
    """Return the name of the store where ranks that are started ahead meet: it outlives the present epoch's."""
    return f"{job}~ahead"


class Waiting(Frozen):
    """Ranks that were started ahead."""

    ready: bool = False
    """All of them wait for their state."""
    why_not: str = ""
    """Why they will not come to wait; empty: they may."""


class Hold(Frozen):
    """Hold all ranks at the boundary after step ``at_step`` (they stay alive), or let them go (None)."""

    job: RunName
    epoch: int
    incarnation: Incarnation
    at_step: Step | None


class PrepareCode(Frozen):
    """Have the checkout of a code version ready."""

    job: RunName
    version: Version
    incarnation: Incarnation
    ranks: int = Field(0, ge=0, description="Ranks per machine of the job; 0: as before.")
    neighbours: tuple[str, ...] = Field((), description="Agents that may have it; asked before S3 is.")
