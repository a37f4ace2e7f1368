"""A training job: what to run, where, and by which rules it is recovered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import Field, model_validator

from holdfast.models.base import MAX_GRACE_S, Frozen, Given
from holdfast.models.checkpoint import Copies, FirstTier, Retention
from holdfast.models.environment import Arguments, Environment, not_yours
from holdfast.models.names import JobName, MachineName, Version
from holdfast.models.role_rules import idle, no_room, problem
from holdfast.models.roles import TRAINER, RoleName, RoleSpec
from holdfast.models.start_from import StartFrom


class JobState(StrEnum):
    """Life of a job."""

    RUNNING = "running"
    PAUSED = "paused"
    RECOVERING = "recovering"
    STOPPED = "stopped"
    FAILED = "failed"
    DONE = "done"
    SCALED_TO_ZERO = "scaled_to_zero"
    """It holds no machine, and goes on from its newest checkpoint in S3 when it is given some."""


MOST_MACHINES = 100_000
MOST_RANKS_PER_MACHINE = 1024
ENDED = frozenset({JobState.STOPPED, JobState.FAILED, JobState.DONE})
"""Nothing of the job runs."""
WAS_STOPPED = "the job was stopped"
"""Summary of an incident whose job a person stopped meanwhile."""


class Mode(StrEnum):
    """How far a playbook may go: only report what it would do, act on listed names only, or act."""

    OBSERVE = "observe"
    CANARY = "canary"
    ACT = "act"


_AXES = frozenset({"tp", "cp", "ep", "dp", "pp"})


class Parallelism(Given):
    """Sizes of the parallel groups; data parallelism takes what is left of the world size.

    Ranks are numbered with the first of ``order`` fastest. Megatron's default order, without CP and EP:
    ``rank = (pp_index * dp + dp_index) * tp + tp_index``. Experts are spread over the ranks that CP and DP have
    together.
    """

    tp: int = Field(1, ge=1, description="Ranks of a tensor-parallel group.")
    pp: int = Field(1, ge=1, description="Pipeline stages.")
    cp: int = Field(1, ge=1, description="Ranks of a context-parallel group.")
    ep: int = Field(1, ge=1, description="Ranks of an expert-parallel group.")
    order: str = Field("tp-cp-ep-dp-pp", description="How ranks are numbered: fastest first.")

    @model_validator(mode="after")
    def _order_names_each_once(self) -> Parallelism:
        named = self.order.split("-")
        if sorted(named) != sorted(_AXES):
            raise ValueError(
                f"parallelism.order = {self.order!r}: expected each of {', '.join(sorted(_AXES))} once, fastest first, "
                "such as tp-cp-ep-dp-pp"
            )
        return self

    def dp(self, world_size: int) -> int:
        """Return the data-parallel size at ``world_size`` ranks."""
        return world_size // (self.tp * self.pp * self.cp)

    def block(self) -> int:
        """Fewest ranks with which a job of this layout can run: the world size is a multiple of it."""
        return self.tp * self.pp * math.lcm(self.cp, self.ep)

    def problem(self, world_size: int) -> str:
        """Return why ``world_size`` ranks cannot be divided so; empty: they can."""
        if not world_size % self.block():
            return ""
        named = "tp x pp" if self.cp == self.ep == 1 else "tp x pp x lcm(cp, ep)"
        return f"parallelism: {named} = {self.block()} does not divide the {world_size} ranks"


class FromScratch(StrEnum):
    """The reaction when a job had saved states and none of them is usable."""

    ASK = "ask"
    """A person decides; nothing is started or deleted meanwhile."""
    ALLOW = "allow"
    """The job starts from zero by itself, and the summary reports what was lost."""
    NEVER = "never"
    """As ``ask``, and a start from zero is refused by hand too."""


class CheckpointPolicy(Given):
    """When state is kept where, and in how many copies. What each choice costs:
    ``policies/restore/checkpoint_cost.py``."""

    s3_every_steps: int = Field(20, ge=1, description="Steps between checkpoints in S3.")
    peer: bool = Field(True, description="Copy every saved step to a peer machine's memory.")
    buffers: int = Field(
        2,
        ge=1,
        le=2,
        description="Copies of its state that a rank keeps itself. 1: it has none while it saves the next one; the "
        "peer has.",
    )
    peer_buffers: int = Field(
        2,
        ge=1,
        le=2,
        description="Copies that the peer keeps of each rank's state. 1: it has none while it takes the next one.",
    )
    memory_every_steps: int = Field(
        1, ge=1, description="Steps between saves into memory (and copies to the peer)."
    )
    max_overhead: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Largest share of training time that saves into memory may take, such as 0.01: where they take "
        "more they are made less often. Without it: at every step that is due.",
    )
    disk_every_steps: int = Field(
        0, ge=0, description="Steps between copies on the machines' own disks; 0: none."
    )
    first_tier: FirstTier = Field(
        FirstTier.MEMORY,
        description="Where ranks save to and peers keep copies: shared memory, or files on the machines' NVMe disks.",
    )
    retention: Retention = Field(Retention(), description="What is kept of the checkpoints in S3.")
    from_scratch: FromScratch | None = Field(
        None, description="When no saved state is usable: ask, allow, never; none: as the policy file says."
    )

    @model_validator(mode="after")
    def _only_saved_steps_go_on(self) -> CheckpointPolicy:
        k = self.memory_every_steps
        for name in ("s3_every_steps", "disk_every_steps"):
            if (every := getattr(self, name)) % k:
                raise ValueError(
                    f"checkpoint.{name} = {every} is no multiple of checkpoint.memory_every_steps = {k}: only steps "
                    f"that are saved into memory can go on from there. Take {every - every % k or k} or "
                    f"{every + k - every % k}."
                )
        return self

    @model_validator(mode="after")
    def _some_copy_is_kept(self) -> CheckpointPolicy:
        if self.buffers == 1 and not self.peer:
            raise ValueError(
                "checkpoint.buffers = 1 with checkpoint.peer = false: while a rank saves there would be no copy of its "
                "state at all. Set peer: true, or buffers: 2."
            )
        return self

    def copies(self, machines: int) -> Copies:
        """Return the copies of each rank's state in the first tier of a job on ``machines`` machines."""
        return Copies(
            own=self.buffers,
            peer=self.peer_buffers if self.peer and machines > 1 else 0,
            # A single buffer is not lent: a small part is copied, a large one waits on the disk for its upload.
            uploads=1 if self.buffers > 1 else 0.5,
            disk=1 if self.disk_every_steps and self.buffers > 1 else 0,
        )


class Elastic(Given):
    """Sizes that a job may have. Its present one is ``machines`` of the :class:`JobSpec`."""

    min: int = Field(ge=1, le=MOST_MACHINES, description="Fewest machines that it trains on.")
    want: int = Field(ge=1, le=MOST_MACHINES, description="Machines that it starts with, and grows back to.")
    max: int = Field(ge=1, le=MOST_MACHINES, description="Most machines that it can be scaled to.")
    start: int | None = Field(
        None, ge=1, description="Machines that it begins with, before it grows to `want`; none: with `want`."
    )

    @model_validator(mode="after")
    def _in_order(self) -> Elastic:
        if not self.min <= self.want <= self.max:
            raise ValueError(
                f"min = {self.min}, want = {self.want}, max = {self.max}: expected min <= want <= max"
            )
        if self.start is not None and not self.min <= self.start <= self.want:
            raise ValueError(
                f"start = {self.start}: expected {self.min} to {self.want}, from min to want: it begins small and grows"
            )
        return self


def no_start(spec: JobSpec) -> str:
    """Return why a job cannot be submitted so; empty: it can.

    Not part of what a job is: one that is recorded is read, and one that is scaled later keeps its roles.
    """
    if wrong := not_yours(spec.env, of_ranks=True):
        return f"env: {wrong}"
    for name, role in spec.roles.items():
        if wrong := not_yours(role.env, of_ranks=False):
            return f"roles.{name}.env: {wrong}"
        if below := [index for index in role.gpus or () if index < 0]:
            return f"roles.{name}.gpus = {below[0]}: expected indices, 0 or more (`[]`: no GPU)"
    return no_room(spec.roles, spec.machines) or idle(spec.roles)


def _sizes(value: Any) -> Any:
    """Read ``machines: {min: 5, want: 8, max: 8}``; ``max`` is ``want`` where it is left out."""
    if not isinstance(value, Mapping) or not isinstance(sizes := value.get("machines"), Mapping):
        return value
    want = sizes.get("want", sizes.get("min", 1))  # one that is missing is reported once
    return {**value, "machines": want, "elastic": {"max": want, **sizes}}


class JobSpec(Given):
    """The job as an engineer submits it (the job file)."""

    name: JobName = Field(description="Lower-case letters, digits and '-'; commands name the job by it.")
    script: str = Field(description="Path of the training script inside the code directory.")
    args: Arguments = Field((), description="Arguments of the script, a list.")
    code: str = Field(
        ".",
        description="Directory with the job's code, seen from that of the job file; in a git repository what git does "
        "not ignore counts.",
    )
    machines: int = Field(
        ge=1,
        le=MOST_MACHINES,
        description="Machines that run ranks; {min, want, max} for a job that trains on with fewer and grows back.",
    )
    elastic: Elastic | None = Field(None, description="Written as `machines: {min, want, max}`.")
    ranks_per_machine: int = Field(
        ge=1, le=MOST_RANKS_PER_MACHINE, description="Ranks on each machine, usually one for each GPU."
    )
    parallelism: Parallelism = Field(
        Parallelism(), description="Parallel groups of the ranks; data parallelism takes what is left."
    )
    env: Environment = Field(
        default_factory=dict, description="Environment variables of the ranks, in addition to torchrun's."
    )
    checkpoint: CheckpointPolicy = Field(
        CheckpointPolicy(), description="When the state is kept where, in how many copies."
    )
    start_from: StartFrom | None = Field(
        None, description="The checkpoint from which the job starts while it has none of its own."
    )
    stop_grace_s: float = Field(
        2.0,
        ge=0,
        le=MAX_GRACE_S,
        description="Seconds between SIGTERM and SIGKILL for ranks that handle SIGTERM, when their job is stopped or "
        "updated. 0: SIGKILL at once, also in recoveries.",
    )
    recovery_grace_s: float = Field(
        0.25,
        ge=0,
        le=MAX_GRACE_S,
        description="The same in a recovery, where most ranks wait for a dead peer inside a library, and no handler "
        "runs before the time is over: as much longer does each recovery take.",
    )
    skip_bad_batches: int = Field(
        0,
        ge=0,
        le=1000,
        description="Steps that the job may pass over because it fell twice at their data; the script asks "
        "`session.skips(step)`. 0: none.",
    )
    mode: Mode = Field(
        Mode.ACT,
        description="How far playbooks go: only report what they would do, act on what the policy file lists, or act. "
        "The most careful of the job's own, the class's and the site's counts.",
    )
    roles: dict[RoleName, RoleSpec] = Field(
        default_factory=dict, description="Kinds of process beside the ranks, by name."
    )

    @model_validator(mode="before")
    @classmethod
    def _machines_may_be_sizes(cls, value: Any) -> Any:
        return _sizes(value)

    @model_validator(mode="after")
    def _a_single_buffer_needs_a_peer(self) -> JobSpec:
        if self.checkpoint.buffers == 1 and 1 in self.sizes:
            raise ValueError(
                "checkpoint.buffers = 1 with machines = 1: no other machine keeps a copy while a rank saves. "
                "Set buffers: 2."
            )
        return self

    @model_validator(mode="after")
    def _starts_from_another(self) -> JobSpec:
        if self.start_from is not None and self.start_from.job == self.name:
            raise ValueError(
                f"start_from.job = {self.name}: it is this job itself. Resume it, or submit it under another name"
            )
        return self

    @model_validator(mode="after")
    def _roles_can_start(self) -> JobSpec:
        if wrong := problem(self.roles):
            raise ValueError(wrong)
        return self

    def with_role(self, name: str, replicas: int) -> JobSpec:
        """Return the spec with this number of replicas of a role.

        Raises:
            ValueError: it has no such role, or no room for so many.
        """
        if name not in self.roles or name == TRAINER:
            known = ", ".join(sorted({*self.roles} - {TRAINER})) or "none"
            raise ValueError(
                f"job {self.name} has no role {name!r} that can be scaled so: its roles are {known}"
            )
        role = RoleSpec.model_validate({**self.roles[name].model_dump(), "replicas": replicas})
        if wrong := replicas and no_room({name: role}, self.machines):
            raise ValueError(wrong)
        return self.model_copy(update={"roles": {**self.roles, name: role}})

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of machines that the job file names."""
        known = self.elastic
        if known is None:
            return (self.machines,)
        return (known.min, known.want, known.max, *(() if known.start is None else (known.start,)))

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.machines * self.ranks_per_machine

    @model_validator(mode="after")
    def _groups_divide_the_world(self) -> JobSpec:
        for machines in {*self.sizes, self.machines}:
            if problem := self.parallelism.problem(machines * self.ranks_per_machine):
                raise ValueError(
                    f"{problem} (machines {machines} x ranks_per_machine {self.ranks_per_machine})"
                )
        return self

    def resized(self, machines: int, *, wanted: bool = False) -> JobSpec:
        """Return the spec with this number of machines; ``wanted``: it stays so, and does not grow back by itself.

        Raises:
            ValueError: the job cannot have so many.
        """
        changed = {**self.model_dump(), "machines": machines}
        if wanted and self.elastic is not None:
            changed["elastic"] = {**changed["elastic"], "want": machines, "start": None}
        return JobSpec.model_validate(changed)

    @model_validator(mode="after")
    def _has_an_allowed_size(self) -> JobSpec:
        known = self.elastic
        if known and not known.min <= self.machines <= known.max:
            raise ValueError(
                f"machines = {self.machines}: expected {known.min} to {known.max}, as the job file says"
            )
        return self


class Job(Frozen):
    """A job as the ledger knows it."""

    spec: JobSpec
    state: JobState
    epoch: int = Field(ge=0, description="Newest epoch; 0 before the first start.")
    code_version: Version
    machines: tuple[MachineName, ...] = Field(description="Machine names by slot; ranks follow slots.")
    submitted_at: float
    done_at: float | None = None

    @property
    def name(self) -> str:
        """The job's name."""
        return self.spec.name

    def ranks_of(self, machine: str) -> range:
        """Return the ranks that run on ``machine``.

        Raises:
            ValueError: the machine is not in this job.
        """
        slot = self.machines.index(machine)
        per = self.spec.ranks_per_machine
        return range(slot * per, (slot + 1) * per)

    def machine_of(self, rank: int) -> str:
        """Name of the machine that runs ``rank``."""
        return self.machines[rank // self.spec.ranks_per_machine]
