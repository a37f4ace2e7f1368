"""Roles of a job beside its ranks: what they run, by which rules their replicas restart, and what they report.

The role ``trainer`` is the job itself: rigid, all its ranks start together. Every other role is a number of replicas,
processes that agents start on the job's machines and restart one by one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from holdfast.models.base import MAX_GRACE_S, Duration, Finite, Frozen, Given
from holdfast.models.environment import Arguments, Environment
from holdfast.models.location import LevelName
from holdfast.models.names import JobName, MachineName, MachineOrNone, Version, VersionOrNone

MACHINE = "machine"
"""The level at which each machine is a domain of its own."""
TRAINER = "trainer"
"""The role of the job's ranks."""
RoleName = Annotated[str, Field(pattern="^[a-z0-9][a-z0-9-]{0,31}$")]
MOST_REPLICAS = 10_000


class RoleKind(StrEnum):
    """How the replicas of a role start."""

    RIGID = "rigid"
    """All together; a fault of one restarts all. The trainer is."""
    DYNAMIC = "dynamic"
    """Each by itself, at any time."""
    ORDERED = "ordered"
    """As dynamic; a role that needs it starts once all of its replicas have announced their address."""


class RestartWhen(StrEnum):
    """Ends of a replica after which it starts again."""

    ALWAYS = "always"
    ON_FAILURE = "on_failure"
    """A replica that ends with status 0 is done."""
    NEVER = "never"


class WithTrainer(StrEnum):
    """Reaction of replicas to a new start of the trainer."""

    STAY = "stay"
    RESTART = "restart"


class Restart(Given):
    """Restart rule of a role.

    A run of a replica was *good* when it announced its address, or lasted ``good_after_s``. Failures are counted from
    the last good run on, so a replica that others kill again and again is restarted without end.
    """

    when: RestartWhen = RestartWhen.ON_FAILURE
    pause_s: Duration = Field(
        0.2, description="Seconds before the first restart; doubled after each bad run."
    )
    longest_pause_s: Duration = Field(30.0, description="The longest pause.")
    good_after_s: Duration = Field(60.0, description="A run that lasted so long was a good one.")
    failures: int = Field(
        5, ge=1, description="Bad runs in a row on one machine; then the replica is placed on another one."
    )
    moves: int = Field(
        2, ge=0, description="Machines that it is tried on after the first; then a person is asked."
    )
    per_hour: int = Field(0, ge=0, description="Restarts of one replica within an hour; 0: any number.")
    silent_s: Duration = Field(
        0.0,
        description="Seconds without roles.alive(), once it was called, after which a run is ended; 0: never.",
    )

    @model_validator(mode="after")
    def _pauses_grow(self) -> Restart:
        if self.longest_pause_s < self.pause_s:
            raise ValueError(
                f"longest_pause_s = {self.longest_pause_s:g} is shorter than pause_s = {self.pause_s:g}"
            )
        return self


class RoleSpec(Given):
    """One role, as the job file has it below ``roles``."""

    kind: RoleKind = RoleKind.DYNAMIC
    script: str = Field("", description="Path of its script inside the code directory.")
    args: Arguments = ()
    replicas: int = Field(1, ge=0, le=MOST_REPLICAS, description="Number of its processes.")
    machines: int = Field(0, ge=0, description="Most of the job's machines that it may use; 0: all.")
    own_machines: int = Field(
        0,
        ge=0,
        le=MOST_REPLICAS,
        description="Machines of its own, which carry no ranks; 0: its replicas run beside the ranks.",
    )
    per_machine: int = Field(0, ge=0, description="Most replicas on one machine; 0: any number.")
    spread: Literal[""] | LevelName = Field(
        "",
        description="Level of domains (machine, rack, switch) over which its replicas are spread first.",
    )
    spread_required: bool = Field(
        False, description="No two replicas in one domain: one without a domain of its own waits."
    )
    cpus: int = Field(1, ge=1, description="Threads that a replica computes with (OMP_NUM_THREADS).")
    gpus: tuple[int, ...] | None = Field(
        None, description="Indices of the machine's GPUs that its replicas see; none: all."
    )
    env: Environment = Field(default_factory=dict)
    needs: tuple[RoleName, ...] = Field((), description="Roles that must be ready before it starts.")
    restart: Restart = Restart()
    with_trainer: WithTrainer = WithTrainer.STAY
    stop_grace_s: float = Field(
        1.0, ge=0, le=MAX_GRACE_S, description="Seconds between SIGTERM and SIGKILL when it is stopped."
    )

    @model_validator(mode="after")
    def _spread_over_something(self) -> RoleSpec:
        if self.spread_required and not self.spread:
            raise ValueError("spread_required: expected a level in `spread`, such as machine, rack or switch")
        return self


class ReplicaPlace(Frozen):
    """Where one replica belongs. A replica of an older generation is stale."""

    role: RoleName
    index: int = Field(ge=0)
    machine: MachineOrNone
    generation: int = Field(ge=1)
    epoch: int = Field(0, ge=0)
    """The trainer's epoch when it was placed."""
    tried: tuple[MachineName, ...] = ()
    """Machines on which it failed too often, since its last good run."""
    asked: str = ""
    """Why a person is asked about it: it failed too often, wherever it was tried."""
    asked_at: Finite = 0.0
    """When that was; some time later it is tried once more."""
    incident: str = ""
    """The incident by which a person is asked, until it works again."""
    failed: str = ""
    """How it failed where it was tried last."""
    restarts: int = Field(0, ge=0)
    """Of it on machines where it failed, and to others: agents count those where it is."""


class PlacesOfJob(Frozen):
    """Where the replicas of a job belong. Generations only rise, also over submissions under the same name."""

    places: tuple[ReplicaPlace, ...] = ()
    generations: dict[str, dict[int, int]] = Field(default_factory=dict)
    """By role and index."""

    def with_role(self, role: str, places: tuple[ReplicaPlace, ...]) -> PlacesOfJob:
        """Return it with these places of one role instead of those it had."""
        others = tuple(each for each in self.places if each.role != role)
        highest = dict(self.generations.get(role, {}))
        for each in places:
            highest[each.index] = max(highest.get(each.index, 0), each.generation)
        return PlacesOfJob(places=(*others, *places), generations={**self.generations, role: highest})

    def of(self, role: str) -> tuple[ReplicaPlace, ...]:
        """Return the places of one role."""
        return tuple(each for each in self.places if each.role == role)


class Replica(Frozen):
    """One replica that an agent is to run."""

    role: RoleName
    index: int = Field(ge=0)
    generation: int = Field(ge=1)
    script: str
    args: tuple[str, ...] = ()
    cpus: int = Field(1, ge=1)
    gpus: tuple[int, ...] | None = None
    env: dict[str, str] = Field(default_factory=dict)
    restart: Restart = Restart()
    stop_grace_s: float = Field(1.0, ge=0, le=MAX_GRACE_S)


class Member(Frozen):
    """A process of a role that can be reached."""

    role: RoleName
    index: int = Field(ge=0)
    generation: int = Field(ge=0)
    address: str


class RolesOfJob(Frozen):
    """A job's replicas that one agent runs, and the members that can be reached."""

    job: JobName
    code_version: Version
    replicas: tuple[Replica, ...] = ()
    members: tuple[Member, ...] = ()


class RolePlan(Frozen):
    """All replicas of one machine; whatever is not in it ends."""

    version: VersionOrNone = ""
    """Digest of the content; empty: nothing is to run, and there are no members."""
    jobs: tuple[RolesOfJob, ...] = ()


class ReplicaPhase(StrEnum):
    """Life of a replica as its agent sees it."""

    RUNNING = "running"
    PAUSING = "pausing"
    """It waits for its turn to start on its machine, or ended and starts again after its pause."""
    DONE = "done"
    """It ended as it should, and stays so."""
    FAILED = "failed"
    """Its failure limit or its budget is passed: it does not start again here."""


class ReplicaState(Frozen):
    """One replica, in a heartbeat."""

    job: JobName
    role: RoleName
    index: int = Field(ge=0)
    generation: int = Field(ge=0)
    phase: ReplicaPhase
    pid: int = 0
    address: str = ""
    """Where it can be reached; empty: it did not announce one."""
    restarts: int = Field(0, ge=0)
    failures: int = Field(0, ge=0)
    """Bad runs since the last good one."""
    since: Finite = 0.0
    """When this run of it began (Unix seconds)."""
    why: str = ""
    """How its last run ended."""


class RoleTime(Frozen):
    """Replica-seconds of a role since its job was submitted: two replicas that ran for a minute are 120."""

    wanted_s: float = Field(0.0, ge=0)
    running_s: float = Field(0.0, ge=0)

    @property
    def share(self) -> float | None:
        """Running over wanted, 0 to 1; None: none was wanted so far."""
        return self.running_s / self.wanted_s if self.wanted_s else None
