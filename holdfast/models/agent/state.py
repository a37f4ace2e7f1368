"""The state of an agent: ranks, their steps, and what else a machine holds."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from holdfast.models.base import Duration, EpochNumber, Finite, Frozen, Step
from holdfast.models.checkpoint import Shard
from holdfast.models.names import Incarnation, MachineName, Rank, RunName, Version
from holdfast.models.rehearsal import Rehearsed
from holdfast.models.roles import ReplicaState
from holdfast.models.setback import Setback


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
    """Seconds of processors that it used, or that its main thread waited for."""
    process_state: str = ""
    """State letter of /proc (``T`` is stopped, ``D`` waits for a device)."""
    children_cpu_s: Finite = 0.0
    """Of all that it started, before its first step and while a step is late; 0: not looked at."""
    io_bytes: int = Field(0, ge=0)
    """Read and written by it and all that it started, at the same times; 0: not looked at."""
    exit_code: int | None = None
    saves_at: Step = 0
    """The newest step at which it was to save, where that is not every step; 0: every one, or not known."""
    saves_every: int = Field(1, ge=1)
    """Steps between the last two of these."""
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
    passed_over: tuple[str, ...] = ()
    """Sources of its state that were refused before one was whole, each with its reason."""
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
    epoch: EpochNumber
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
