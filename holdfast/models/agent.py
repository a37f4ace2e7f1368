"""What agents, playbooks and the gateway say to one another. Every command carries (job, epoch, incarnation)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from holdfast.models.alert import Alert, Finding
from holdfast.models.base import Frozen
from holdfast.models.checkpoint import RemoteCheckpoint, RestoreOrder, Shard


class RankPhase(StrEnum):
    """Life of a rank process as its agent sees it."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


class RankState(Frozen):
    """One rank process."""

    rank: int
    pid: int
    phase: RankPhase
    step: int = 0
    """Last step it reported complete (0: none yet in this epoch)."""
    steps_done: int = 0
    """Steps completed in this epoch; 0 while the first is under way."""
    step_at: float = 0.0
    """When it reported that step (Unix seconds); the start time before the first."""
    activity: str = ""
    """The phase of the step it is in (``forward``, ``eval``, ``checkpoint``, ...), if it said so."""
    loss: float | None = None
    grad_norm: float | None = None
    step_s: float = 0.0
    """Exponentially weighted mean duration of a step, seconds."""
    cpu_s: float = 0.0
    process_state: str = ""
    """State letter of /proc (``T`` is stopped, ``D`` waits for a device)."""
    exit_code: int | None = None
    paused: bool = False


class StepMark(Frozen):
    """A completed step: number and time."""

    step: int
    at: float


class JobOnMachine(Frozen):
    """What an agent runs for one job."""

    job: str
    epoch: int
    ranks: tuple[RankState, ...] = ()
    marks: tuple[StepMark, ...] = ()
    """Steps that the machine's lowest rank completed since the previous heartbeat."""
    replicated_step: int = 0
    """Newest step of which all of this machine's shards lie on the peer."""


class Register(Frozen):
    """First word of an agent after it started: a new incarnation."""

    machine: str
    incarnation: str
    address: str
    data_address: str
    pid: int
    checks: tuple[Finding, ...] = ()
    """Results of the self-checks that a standby passes before it may join."""


class Heartbeat(Frozen):
    """What an agent says every interval."""

    machine: str
    incarnation: str
    at: float
    jobs: tuple[JobOnMachine, ...] = ()


class Report(Frozen):
    """Alerts and facts that an agent sends at once."""

    machine: str
    incarnation: str
    alerts: tuple[Alert, ...] = ()
    started: tuple[StepMark, ...] = ()
    """Steps that should not wait for a heartbeat: an epoch's first, and the last ones before a fence."""
    job: str | None = None
    epoch: int | None = None
    done: tuple[int, ...] = ()
    """Ranks that ended with status 0."""
    checkpoints: tuple[RemoteCheckpoint, ...] = ()
    """Checkpoints whose manifest was just written to S3."""


class Fence(Frozen):
    """Stop every rank of ``job`` with an epoch up to ``epoch`` and refuse such epochs from now on."""

    job: str
    epoch: int
    incarnation: str


class OpenRendezvous(Frozen):
    """Host the rendezvous store for an epoch (asked of the machine of rank 0)."""

    job: str
    epoch: int
    incarnation: str
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

    job: str
    epoch: int
    incarnation: str
    script: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    code_version: str
    ranks: tuple[int, ...]
    """Global ranks on this machine; local ranks follow their order."""
    world_size: int
    rendezvous: Rendezvous
    restore: RestoreOrder = RestoreOrder()
    peer: str = ""
    """``host:port`` (data address) of the machine that keeps copies of this machine's shards."""
    peer_machine: str = ""
    s3_every_steps: int = 0
    """0: no checkpoints in S3."""
    replay: Replay | None = None


class Hold(Frozen):
    """Hold all ranks at the boundary after step ``at_step`` (they stay alive), or let them go (None)."""

    job: str
    epoch: int
    incarnation: str
    at_step: int | None


class FetchShard(Frozen):
    """Copy one shard from another machine's memory into this one's, for a coming epoch."""

    job: str
    epoch: int
    incarnation: str
    rank: int
    step: int
    source: str
    """``host:port`` (data address) of the machine that has it."""


class PrepareCode(Frozen):
    """Have the checkout of a code version ready."""

    job: str
    version: str
    incarnation: str


class Diagnose(Frozen):
    """Run stop-time checks in fresh processes.

    ``inspect`` looks at the machine; ``all_to_all`` runs among processes on this machine; ``all_gather`` runs
    with ``peers`` (data moves both ways, integrity checked).
    """

    job: str
    epoch: int
    incarnation: str
    check: str = Field(pattern=r"^(inspect|all_to_all|all_gather)$")
    processes: int = 2
    peer: str = ""
    """The neighbour's machine name (``all_gather``)."""
    process_rank: int = 0
    """This machine's position in the pair (``all_gather``)."""
    rendezvous: Rendezvous | None = None
    timeout_s: float = 30.0


class Frame(Frozen):
    """One frame of a stack."""

    function: str
    file: str
    line: int = 0


class StackDump(Frozen):
    """Stack of one thread of one process on one machine."""

    machine: str
    rank: int | None
    pid: int
    thread: str = "MainThread"
    process_state: str = ""
    child: bool = False
    """A child of the rank process (data loader, checkpoint writer)."""
    frames: tuple[Frame, ...] = ()
    error: str = ""


class RankResult(Frozen):
    """How a replayed rank ended."""

    rank: int
    machine: str
    ok: bool
    detail: str = ""


class AgentState(Frozen):
    """Everything an agent knows, for playbooks and people."""

    machine: str
    incarnation: str
    jobs: tuple[JobOnMachine, ...] = ()
    shards: tuple[Shard, ...] = ()
    fences: dict[str, int] = Field(default_factory=dict)
    warm: bool = False
    """The fork server has its libraries loaded."""
    info: dict[str, Any] = Field(default_factory=dict)
