"""The data of a simulation, typed; the packaged figures are in ``default.yaml``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from holdfast.models.alert import AlertKind
from holdfast.models.base import Frozen
from holdfast.models.job import Parallelism
from holdfast.models.roles import RoleName
from holdfast.policies.config.policy_file import merge, parse, validate
from holdfast.simulate.simulated_role import SimulatedRole, wrong

DEFAULT_FILE = Path(__file__).with_name("default.yaml")
WHAT = "scenario file"
DAY_S = 86_400.0
WHOLE = frozenset({"causes", "stacks", "restart_s", "kept_s", "requeue_s"})
"""Tables and splits, which a file replaces as a whole."""


class Cause(StrEnum):
    """The real cause behind a symptom; the policies do not see it."""

    MACHINE = "machine"
    """One machine is broken: the fault comes back until it is out."""
    CODE = "code"
    """The job's code or data: it comes back until rolled back or fixed."""
    TRANSIENT = "transient"
    """Gone with the next start."""
    PLANNED = "planned"
    """No fault: an engineer ships a change."""


class SymptomSign(Frozen):
    """An alert that a symptom raises; job, machine, rank, epoch and time are filled in."""

    kind: AlertKind
    evidence: dict[str, Any] = Field(default_factory=dict)


class Symptom(Frozen):
    """One row of the incident mix."""

    count: float = Field(ge=0)
    """How often it was seen, relative to the others."""
    causes: dict[Cause, float]
    """Parts of each cause."""
    signs: tuple[SymptomSign, ...]
    detect_s: float = Field(ge=0)
    """Until it is noticed by inspection, heartbeats and votes."""
    timeout_s: float = Field(ge=0)
    """Until it is noticed without them: the collective times out, or a person looks."""
    found_share: float = Field(0.0, ge=0, le=1)
    """Probability that stop-time checks find the machine at fault."""
    stacks: dict[str, float] = Field(default_factory=dict)
    """Parts of what the stacks show when a machine is at fault: ``one`` rank, its pipeline ``group``, ``none``."""
    corrupts: bool = False
    """The state after the newest step is bad: it must not be restored."""
    slowdown: float = Field(0.0, ge=0, lt=1)
    """The job does not stop but loses this share of its speed until the incident is detected."""

    @model_validator(mode="after")
    def _has_a_cause(self) -> Symptom:
        if any(part < 0 for part in self.causes.values()) or not sum(self.causes.values()) > 0:
            raise ValueError("causes: expected parts of at least 0 that do not all vanish")
        return self

    def share(self, cause: Cause) -> float:
        """Probability of ``cause``."""
        return self.causes.get(cause, 0.0) / sum(self.causes.values())


class Costs(Frozen):
    """Durations, in seconds unless the name has another unit."""

    dispatch_s: float = Field(ge=0)
    pause_s: float = Field(ge=0)
    diagnose_s: float = Field(ge=0)
    stacks_s: float = Field(ge=0)
    replay_s: float = Field(ge=0)
    """One round of both phases."""
    service_s: float = Field(ge=0)
    """Until an outside service answers again."""
    rollback_s: float = Field(ge=0)
    evict_s: float = Field(ge=0)
    shrink_s: float = Field(0.0, ge=0)
    """The job is made smaller; the restart itself is apart."""
    grow_s: float = Field(0.0, ge=0)
    """Machines that are back are claimed and checked, while the job stands; hold, restore and restart are apart."""
    move_s: float = Field(ge=0)
    """A planned move: the job is held and its ranks, started ahead, take over; else restore and restart come on top."""
    swap_s: float = Field(ge=0)
    """A standby takes the place; the restart itself is apart."""
    restart_s: dict[int, float]
    """In place, by number of machines: from the start of the processes to the first step."""
    kept_s: dict[int, float]
    """In place, where all processes but those that died are kept, by number of machines: to the first step."""
    requeue_s: dict[int, float]
    """Kill, queue, allocate, set up and start the whole job, by number of machines."""
    reschedule_share: float = Field(gt=0)
    """To replace single machines without a standby: this share of a requeue."""
    memory_s: float = Field(ge=0)
    """Restore from memory and peers."""
    s3_s: float = Field(ge=0)
    """Restore from the remote store."""
    human_s: float = Field(ge=0)
    """Until a person has looked, on average."""
    again_s: dict[Cause, float]
    """Until a fault that was not removed strikes again, on average, by cause (``machine`` and ``code``)."""
    reproduced_share: float = Field(ge=0, le=1)
    """Probability that a phase of a replay reproduces a machine's fault."""
    newest_share: float = Field(ge=0, le=1)
    """Probability that a code fault is in the newest change, so that a rollback removes it."""
    urgent_share: float = Field(ge=0, le=1)
    """Share of code changes that cannot wait for the next restart."""
    merge_h: float = Field(gt=0)
    """The longest time that other changes wait."""
    inspect_h: float = Field(gt=0)
    """Interval between inspections of standbys: between two, a broken one is not noticed."""
    spread: float = Field(ge=0)
    """Standard deviation of the logarithm of every duration; 0: always as given."""

    @model_validator(mode="after")
    def _times_are_times(self) -> Costs:
        tables = {"restart_s": self.restart_s, "kept_s": self.kept_s, "requeue_s": self.requeue_s}
        for name, table in tables.items():
            if not table or any(size < 1 or seconds < 0 for size, seconds in table.items()):
                raise ValueError(
                    f"{name}: expected at least one number of machines with seconds of at least 0"
                )
        for cause in (Cause.MACHINE, Cause.CODE):
            if not self.again_s.get(cause, 0.0) > 0:
                raise ValueError(f"again_s.{cause.value}: expected seconds above 0")
        return self


class Saving(Frozen):
    """The costs of checkpoints."""

    every_step_share: float = Field(ge=0)
    """Checkpoint at every step: time that training stands still, as a share of the step."""
    write_s: float = Field(ge=0)
    """Checkpoint every k minutes: time that one blocks training."""
    s3_every_s: float = Field(gt=0)
    """Beside a checkpoint at every step: the interval of those in S3."""


class Switch(Frozen):
    """The catastrophic case."""

    machines: int = Field(ge=1)
    share: float = Field(ge=0, le=1)
    """Of all machine faults, those that take a whole switch along."""


class Strategy(StrEnum):
    """How a job gets machines back."""

    REQUEUE = "requeue"
    """Every interruption sends the whole job back to the queue."""
    RESCHEDULE = "reschedule"
    """Machines that are not at fault stay; the others are replaced by the scheduler."""
    POOL = "pool"
    """Standbys take over; beyond the pool, the scheduler."""
    UNLIMITED = "unlimited"
    """There is always a standby."""


class Variant(Frozen):
    """One way to run the job."""

    name: str = ""
    strategy: Strategy = Strategy.POOL
    pool: int | None = Field(None, ge=0)
    """Standbys; None: by the sizing policy."""
    checkpoint_s: float | None = Field(None, gt=0)
    """Seconds between checkpoints; None: every step, in memory and on a peer."""
    inspection: bool = True
    """Faults are noticed by inspection and votes, not by timeouts."""
    rollback: bool = True
    aggregation: bool = True
    replay: bool = True
    again: bool = True
    """While a person is asked the job is started again after the policy's pauses (``again``); else it stands."""
    moves: bool = True
    """Machines that are to be left are left by a planned move; else they are lost."""
    roles: bool = True
    """The job has the scenario's roles; else its trainer is alone, under the same faults."""
    elastic: bool = False
    """Without a standby the job trains on with whole replicas that are left, and grows back."""

    keep_processes: bool = False
    """The script runs under ``holdfast.run``: ranks keep their process where the policy lets them."""

    @model_validator(mode="after")
    def _goes_on_from_memory(self) -> Variant:
        for name in ("elastic", "keep_processes"):
            if getattr(self, name) and (self.strategy is Strategy.REQUEUE or self.checkpoint_s is not None):
                raise ValueError(
                    f"{name}: expected a strategy other than requeue, and a checkpoint at every step"
                )
        return self

    @property
    def title(self) -> str:
        """Its name, or one made of what it is."""
        if self.name:
            return self.name
        strategy = self.strategy.value + ("" if self.pool is None else f" of {self.pool}")
        saved = "every step" if self.checkpoint_s is None else f"every {self.checkpoint_s / 60:g} min"
        off = [
            name
            for name in ("inspection", "rollback", "aggregation", "replay", "again", "moves", "roles")
            if not getattr(self, name)
        ]
        grows = (", elastic" if self.elastic else "") + (", processes kept" if self.keep_processes else "")
        return f"{strategy}, checkpoint {saved}{grows}" + (f", no {', no '.join(off)}" if off else "")


class Scenario(Frozen):
    """A job, what befalls it, and the ways of running it that are compared."""

    machines: int = Field(ge=1)
    ranks_per_machine: int = Field(ge=1)
    parallelism: Parallelism
    days: float = Field(gt=0)
    step_s: float = Field(gt=0)
    machine_rate: float = Field(ge=0)
    """Faults caused by a machine, per machine and day."""
    mix_rate: float = Field(ge=0)
    """The machine rate at which the symptoms' counts hold: what is not a machine's fault comes this often
    whatever ``machine_rate`` is."""
    leave_rate: float = Field(ge=0)
    """Machines that are to be left although they work (maintenance, preemption), per machine and day."""
    code_share: float = Field(ge=0)
    """Share of the mix's code faults that happen to this job."""
    replenish_h: float = Field(gt=0)
    symptoms: dict[str, Symptom]
    switch: Switch
    costs: Costs
    saving: Saving
    roles: dict[RoleName, SimulatedRole] = Field(default_factory=dict)
    """Processes beside the ranks."""
    variants: tuple[Variant, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_a_job(self) -> Scenario:
        if problem := self.parallelism.problem(self.machines * self.ranks_per_machine):
            raise ValueError(problem)
        if self.machine_rate > 0 and not self.machine_weights():
            raise ValueError("symptoms: none has the cause machine, so machine_rate must be 0")
        if problem := wrong(self.roles, self.machines):
            raise ValueError(problem)
        return self

    @classmethod
    def load(cls, path: Path | None = None) -> Scenario:
        """Return the packaged scenario, with what ``path`` changes (None: nothing).

        Raises:
            SettingsError: the file is missing or no YAML, or a key or value is wrong (named with its line).
        """
        default = parse(DEFAULT_FILE, WHAT)
        if path is None:
            return validate(cls, default.values, default)
        changes = parse(path, WHAT)
        return validate(cls, merge(default.values, changes.values, WHOLE), changes)

    def machine_weights(self) -> dict[str, float]:
        """Return the symptoms of machine faults, by how often."""
        weights = {name: row.count * row.share(Cause.MACHINE) for name, row in self.symptoms.items()}
        return {name: weight for name, weight in weights.items() if weight > 0}

    def other_weights(self) -> dict[tuple[str, Cause], float]:
        """Return symptoms with other causes, by how often."""
        part = {Cause.CODE: self.code_share}
        weights = {
            (name, cause): row.count * row.share(cause) * part.get(cause, 1.0)
            for name, row in self.symptoms.items()
            for cause in Cause
            if cause is not Cause.MACHINE
        }
        return {key: weight for key, weight in weights.items() if weight > 0}

    def machine_faults_per_s(self) -> float:
        """Return the machine faults per second of the whole job."""
        return self.machines * self.machine_rate / DAY_S

    def others_per_s(self) -> float:
        """Return the job's other faults per second: as many as the mix has beside machine faults of ``mix_rate``."""
        machine, other = sum(self.machine_weights().values()), sum(self.other_weights().values())
        return self.machines * self.mix_rate / DAY_S * other / machine if machine else 0.0


def at_size(table: Mapping[int, float], machines: int) -> float:
    """Read a table by number of machines: straight between entries over the logarithm, flat beyond them."""
    sizes = sorted(table)
    if machines <= sizes[0]:
        return table[sizes[0]]
    for low, high in pairwise(sizes):
        if machines <= high:
            part = math.log(machines / low) / math.log(high / low)
            return table[low] + part * (table[high] - table[low])
    return table[sizes[-1]]
