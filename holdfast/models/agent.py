"""Messages between agents, playbooks and the gateway. Every command carries (job, epoch, incarnation)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from holdfast.models.alert import Alert, Finding
from holdfast.models.base import MAX_GRACE_S, MAX_KEEP_S, Duration, Finite, Frozen, Step
from holdfast.models.checkpoint import (
    Copies,
    FirstTier,
    RemoteCheckpoint,
    RestoreOrder,
    Retention,
    Shard,
    Tier,
)
from holdfast.models.location import Location
from holdfast.models.names import (
    Incarnation,
    KeyOrNone,
    MachineName,
    MachineOrNone,
    ObjectKey,
    Rank,
    RunName,
    Version,
)
from holdfast.models.open_enum import OpenEnum
from holdfast.models.rehearsal import Rehearsed
from holdfast.models.replica import StateDigests
from holdfast.models.roles import Plan, ReplicaState
from holdfast.models.setback import Setback


class Check(OpenEnum):
    """Stop-time checks that an agent runs, cheapest first; a ladder's tiers are some of them.

    Other packages declare more (:mod:`holdfast.plugins`, diagnosers).
    """

    INSPECT = "inspect"
    """Inspect the machine: kernel log, GPUs, host, disks, network."""
    VENDOR = "vendor"
    """The vendor's own diagnostics, where they are installed."""
    MATMUL = "matmul"
    """A fixed matrix product per GPU, or per rank on the processor: right, and as fast as the others'."""
    PCIE = "pcie"
    """Transfers between host memory and each GPU, both ways, every byte compared; without GPUs within the memory."""
    DISK = "disk"
    """The disk of the machine's folder: bytes written through to it and read back, all compared."""
    ALL_TO_ALL = "all_to_all"
    """Among the processes of each machine."""
    ALL_GATHER = "all_gather"
    """Between neighbours, every byte compared; then suspects with good machines."""
    NIC = "nic"
    """RDMA through each adapter of the machine, from it to itself."""
    BITWISE = "bitwise"
    """One step of the same small model everywhere; the results compared bit for bit."""
    FLIGHT_RECORDER = "flight_recorder"
    """The record of the ranks' collectives from before they died."""


class RankPhase(StrEnum):
    """Life of a rank process as its agent sees it."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


class RankState(Frozen):
    """One rank process."""

    rank: Rank
    pid: int
    phase: RankPhase
    step: Step = 0
    """Last step it reported complete (0: none yet in this epoch)."""
    steps_done: int = 0
    """Steps completed in this epoch; 0 while the first is under way."""
    step_at: Finite = 0.0
    """When it reported that step (Unix seconds); the start time before the first."""
    activity: str = ""
    """The phase of the step it is in (``forward``, ``eval``, ``checkpoint``, ...), if it reported one."""
    loss: Finite | None = None
    grad_norm: Finite | None = None
    step_s: Finite = 0.0
    """Exponentially weighted mean duration of a step, seconds."""
    mfu: Finite | None = None
    """Model FLOPs utilisation of its last step, if it reported it."""
    phases: dict[str, Finite] = Field(default_factory=dict)
    """Exponentially weighted mean seconds in each phase of a step."""
    cpu_s: Finite = 0.0
    process_state: str = ""
    """State letter of /proc (``T`` is stopped, ``D`` waits for a device)."""
    children_cpu_s: Finite = 0.0
    """Of all that it started, before its first step only."""
    io_bytes: int = Field(0, ge=0)
    """Read and written by it and all that it started, before its first step only."""
    exit_code: int | None = None
    paused: bool = False
    kept: bool = False
    """Its process was there before this epoch, and was kept."""
    keeps: bool = False
    """Its process may be kept when this epoch is over."""
    why_new: str = ""
    """Why its process is a new one where that of the epoch before might have been kept."""
    reports: bool = True
    """It has a Session, which reports steps: something was reported in this epoch."""
    log_at: Finite | None = None
    """When something was last written to its log; None: not known."""
    damaged: str = ""
    """Why it could not load the state that it was to resume from, when that is how it ended."""


class StepMark(Frozen):
    """A completed step: number and time."""

    step: Step
    at: Finite
    s: Duration = 0.0
    """How long it took, seconds."""
    stall_s: Duration = 0.0
    """Of it: how long training stood still for a checkpoint."""


class StepTimes(Frozen):
    """The time of one step of one rank, by phase."""

    step: Step
    at: Finite
    """When it was complete, Unix seconds of the machine's clock."""
    s: Duration = 0.0
    """How long it took, seconds."""
    phases: dict[str, Finite] = Field(default_factory=dict)
    """Seconds of each named part of it, in the order in which they first ended."""


class JobOnMachine(Frozen):
    """The part of one job that an agent runs."""

    job: RunName
    epoch: int
    ranks: tuple[RankState, ...] = ()
    marks: tuple[StepMark, ...] = ()
    """Steps that rank 0 completed since the previous heartbeat; only the machine of rank 0 reports them."""
    times: tuple[StepTimes, ...] = ()
    """The newest steps of the machine's lowest rank by phase, at most eight: a heartbeat's size must not follow the
    steps' pace."""
    replicated_step: int = 0
    """Newest step of which all of this machine's shards lie on the peer."""
    shard_nbytes: int = 0
    """Size of the largest shard of its ranks; 0: none was saved yet."""
    rehearsed: Rehearsed | None = None
    """The results of rehearsals of a restore in this epoch; None: there was none yet."""
    saved_step: Step = 0
    """Newest step that one of its ranks saved in this epoch; 0: none."""
    setbacks: tuple[Setback, ...] = ()
    """Where saves of this epoch fail at present, one for each place."""


class Register(Frozen):
    """First word of an agent after it started: a new incarnation."""

    machine: MachineName
    incarnation: Incarnation
    address: str
    data_address: str
    pid: int
    checks: tuple[Finding, ...] = ()
    """Results of the self-checks that a standby passes before it may join."""
    location: Location = Field(default_factory=dict)
    """Its failure domains by level."""


class Vitals(Frozen):
    """Activity of a machine's GPUs and ports. None: it has none, or they do not report it."""

    gpu_busy: float | None = None
    """Mean utilisation of its GPUs, 0 to 1."""
    traffic_bytes_s: float | None = None
    """Bytes that its ports sent and received per second between the last two readings."""
    sm_active: float | None = None
    """Share of SMs that were busy, of the GPU with most of them, 0 to 1."""
    tensor_active: float | None = None
    """Share of the time in which its tensor cores worked, likewise."""


class Heartbeat(Frozen):
    """The message that an agent sends every interval."""

    machine: MachineName
    incarnation: Incarnation
    at: Finite
    jobs: tuple[JobOnMachine, ...] = ()
    vitals: Vitals | None = None
    replicas: tuple[ReplicaState, ...] = ()
    """Of roles; and ranks that announced an address."""
    plan: str = ""
    """Version of the plan for its replicas that it goes by."""


class Witness(Frozen):
    """Another machine, which can be asked whether it reaches the gateway."""

    name: MachineName
    address: str


class Heard(Frozen):
    """The gateway's answer to a heartbeat."""

    ok: bool = True
    lease_s: float = Field(0.0, ge=0)
    """Seconds that the machine's ranks may run from this heartbeat on; 0: no limit was given."""
    renews: bool = True
    """False: the machine is being evicted; what it was granted before is not prolonged."""
    witnesses: tuple[Witness, ...] = ()
    """Machines elsewhere in the fleet."""
    plan: Plan | None = None
    """Replicas that it is to run; None: as before."""


class Contact(Frozen):
    """An agent's contact with the gateway, by its own clock."""

    heard_s: float
    """Seconds since the gateway last answered it."""
    since_s: float
    """Seconds for which it has been answered without a gap."""


class Report(Frozen):
    """Alerts and facts that an agent sends at once."""

    machine: MachineName
    incarnation: Incarnation
    at: float = 0.0
    """When it was sent, on the machine's clock; 0: not reported."""
    alerts: tuple[Alert, ...] = ()
    started: tuple[StepMark, ...] = ()
    """Steps that should not wait for a heartbeat: an epoch's first, and the last ones before a fence."""
    job: RunName | None = None
    epoch: int | None = None
    done: tuple[int, ...] = ()
    """Ranks that ended with status 0."""
    checkpoints: tuple[RemoteCheckpoint, ...] = ()
    """Checkpoints whose manifest was just written to S3."""
    holds: tuple[StateDigests, ...] = ()
    """Digests of what ranks of this machine saved, to be compared with those of their replicas."""
    dropped: tuple[ObjectKey, ...] = ()
    """Keys of checkpoints of ``job`` that were just removed from S3."""


class Fence(Frozen):
    """Stop every rank of ``job`` with an epoch up to ``epoch`` and refuse such epochs from now on."""

    job: RunName
    epoch: int
    incarnation: Incarnation
    grace_s: float = Field(0.0, ge=0, le=MAX_GRACE_S)
    """Seconds between SIGTERM and SIGKILL for ranks that handle SIGTERM."""
    keep_s: float = Field(0.0, ge=0, le=MAX_KEEP_S)
    """How long processes of ranks that allow it may wait for the next epoch, out of their training; 0: none may."""


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
    copies: Copies = Copies()
    """Of each rank's state, in the first tier."""
    first_tier: FirstTier = FirstTier.MEMORY
    retention: Retention = Retention()
    stop_grace_s: float = Field(0.0, ge=0, le=MAX_GRACE_S)
    """As :attr:`Fence.grace_s`, when the agent itself is asked to end."""
    replay: Replay | None = None
    keep: bool = False
    """Ranks may go on in processes that wait for this epoch."""
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


class Mirror(Frozen):
    """Send each shard that this machine's ranks save to one more machine, besides the peer, for a while."""

    job: RunName
    epoch: int
    incarnation: Incarnation
    address: str
    """Data address of that machine."""
    keep_s: float = Field(gt=0, le=3600)


class Hold(Frozen):
    """Hold all ranks at the boundary after step ``at_step`` (they stay alive), or let them go (None)."""

    job: RunName
    epoch: int
    incarnation: Incarnation
    at_step: Step | None


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


class PrepareCode(Frozen):
    """Have the checkout of a code version ready."""

    job: RunName
    version: Version
    incarnation: Incarnation
    ranks: int = Field(0, ge=0, description="Ranks per machine of the job; 0: as before.")
    neighbours: tuple[str, ...] = Field((), description="Agents that may have it; asked before S3 is.")


class Diagnose(Frozen):
    """Run stop-time checks in fresh processes.

    :class:`Check` lists them. ``all_gather`` runs with ``peer`` (data moves both ways, integrity checked);
    all others check this machine alone.
    """

    job: RunName
    epoch: int
    incarnation: Incarnation
    check: str = Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")
    """One of :class:`Check`, or a diagnoser that is installed on the machine."""
    processes: int = 2
    peer: MachineOrNone = ""
    """The neighbour's machine name (``all_gather``)."""
    process_rank: int = 0
    """This machine's position in the pair (``all_gather``)."""
    rendezvous: Rendezvous | None = None
    measure: bool = False
    """Time collectives as well: some rounds more, for which a recovery would wait."""
    timeout_s: float = 30.0


class Command(Frozen):
    """Have a command of another package done on this machine (:mod:`holdfast.plugins`). Safe to repeat."""

    job: RunName
    epoch: int
    incarnation: Incarnation
    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")
    values: dict[str, Any] = Field(default_factory=dict)
    timeout_s: float = Field(30.0, gt=0)


class Frame(Frozen):
    """One frame of a stack."""

    function: str
    file: str
    line: int = 0


class StackDump(Frozen):
    """Stack of one thread of one process on one machine."""

    machine: MachineName
    rank: Rank | None
    pid: int
    thread: str = "MainThread"
    process_state: str = ""
    child: bool = False
    """A child of the rank process (data loader, checkpoint writer)."""
    frames: tuple[Frame, ...] = ()
    error: str = ""


class FlightRecord(Frozen):
    """How far one rank came in one process group, as PyTorch's flight recorder has it."""

    rank: Rank
    group: str
    """Name of the group, the same on all of its members. Groups with different members may share one."""
    ranks: tuple[int, ...] = ()
    """Its members, as far as they are recorded."""
    backend: str = ""
    """Such as ``nccl``: each numbers its own collectives of a group."""
    enqueued: int
    """Number of the newest collective that the rank issued; -1: none."""
    started: int | None = None
    """Number of the newest that its GPU came to; None: starts are not recorded."""
    completed: int
    """All up to this number are completed."""
    operation: str = ""
    """The newest one, such as ``gloo:all_reduce``."""
    recent: dict[int, str] = Field(default_factory=dict)
    """The newest few by number, with their sizes where these must be equal on all members."""
    sending: bool = False
    """It waits in a point-to-point operation of this group."""
    peers: tuple[int, ...] = ()
    """The ranks on the other side, as far as they are recorded."""


class StepDigest(Frozen):
    """Digests of what one rank computed in one step of a replay, to the last bit; empty: it did not report them."""

    step: Step
    loss: str = ""
    grad_norm: str = ""
    gradients: str = ""
    """As the optimizers were given them."""
    parameters: str = ""
    """As the optimizers left them."""


class RankResult(Frozen):
    """How a replayed rank ended."""

    rank: Rank
    machine: MachineName
    ok: bool
    detail: str = ""
    digests: tuple[StepDigest, ...] = ()
    kind: str = ""
    """Hardware and software that they are of."""


class AgentState(Frozen):
    """Everything an agent knows, for playbooks and people."""

    machine: MachineName
    incarnation: Incarnation
    jobs: tuple[JobOnMachine, ...] = ()
    shards: tuple[Shard, ...] = ()
    replicas: tuple[ReplicaState, ...] = ()
    fences: dict[str, int] = Field(default_factory=dict)
    warm: bool = False
    """The fork server has its libraries loaded."""
    spares_missing: int = 0
    """Spare processes that a recovery would take and that do not wait yet."""
    info: dict[str, Any] = Field(default_factory=dict)


class Settled(Frozen):
    """The state of a machine once nothing of a job runs there: all that the job's next start is planned from."""

    state: AgentState
    code: tuple[Version, ...] = ()
    """Versions of the job's code that are checked out."""
    kept: int = Field(0, ge=0)
    """Ranks whose process was kept, and waits for the next epoch."""
    not_kept: dict[Rank, str] = Field(default_factory=dict)
    """Ranks whose process might have been kept and was ended, with the reason; not those that died by themselves."""
