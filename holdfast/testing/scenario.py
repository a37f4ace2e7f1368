"""The model of a scenario: YAML, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from holdfast.models.agent import Vitals
from holdfast.models.alert import IncidentState, RecordedClass
from holdfast.models.base import Frozen
from holdfast.models.job import Elastic, JobState, Mode
from holdfast.models.machine import MachineState, Scope


class Setup(Frozen):
    """The job and its past."""

    machines: int = 4
    elastic: Elastic | None = None
    ranks: int = 2
    tp: int = 1
    pp: int = 1
    own_machines: int = 0
    """Machines that a role of the job has for itself, after those of its ranks."""
    standbys: int = 2
    mode: Mode = Mode.ACT
    state: JobState = JobState.RUNNING
    code_changed_s_ago: float | None = None
    """The second code version was switched to so long ago (that is epoch 2); None: one version, epoch 1."""
    offences: dict[str, int] = Field(default_factory=dict)
    """Machine -> evictions of late, in another job."""
    crashed_before: tuple[str, ...] = ()
    """Rungs that earlier incidents of this job tried without progress since."""
    resubmitted: bool = False
    """The job was stopped and submitted again under its name, after what happened before."""
    other_code: bool = False
    """The first submission had other code (``v0``), with which it trained."""
    resumed: bool = False
    """A person resumed it after what happened before."""
    replaced: str = ""
    """This machine was evicted earlier; a standby took its place."""
    reached: int = 0
    """Step that the job's present epoch came to."""
    head_start: bool = False
    """The gateway makes the first acts of a recovery; else the playbook does all of them."""
    saved: bool = True
    """Its agents reported that it saves its state."""
    skip_bad_batches: int = 0
    """Steps that the job file allows it to pass over."""
    policy: str = ""
    """YAML that the site's policy file holds."""


class Signal(Frozen):
    """One signal, a stretch of heartbeats, or something else that happens."""

    kind: str = ""
    """An alert's kind; empty: heartbeats, an Alertmanager payload, what a machine or person does, or time passes."""
    registers: str = ""
    """This machine registers (again)."""
    inspects_standbys: bool = False
    """The schedule that checks standbys runs."""
    approves: bool = False
    """A person approves what the newest incident asked for, if it still asks."""
    machine_states: dict[str, MachineState] = Field(default_factory=dict)
    """Machines whose state others change: another job takes one, a person releases one."""
    job_state: JobState | None = None
    """A person stops the job, or starts it."""
    updates_to: str = ""
    """A person ships this code version, for the next start."""
    request: str = ""
    """A person's request to the gateway: the route after ``/v1/``, such as ``jobs/gpt/stop``."""
    body: dict[str, Any] | None = None
    """Body of ``request``."""
    restarts: bool = False
    """The gateway is killed and started again."""
    policy: str | None = None
    """YAML that the site's policy file holds from then on; the gateway and the workers are started again with it."""
    machine: str | None = None
    rank: int | None = None
    epoch: int | None = None
    """None: the job's present one for ranks and the job, none for machines."""
    incarnation: str = "i1"
    """Of the machine; empty: not given."""
    job: str | None = "gpt"
    age_s: float = 0.0
    firing: bool = True
    fingerprint: str = ""
    evidence: dict[str, Any] = Field(default_factory=dict)
    after_s: float = 0.0
    """Time that passes before it."""
    after_rest: bool = False
    """Sent after everything that earlier signals started has ended; then ``after_s`` passes."""
    while_asked: bool = False
    """Sent when a playbook asks a person, before any answer; ``after_s`` after the question."""
    reached: int = 0
    """The job's present epoch completed this step before it, and holds it in memory; 0: none."""
    becomes: dict[str, Any] = Field(default_factory=dict)
    """Changes to the scripted world from then on."""
    times: int = 1
    """Sent so often, at once."""
    alertmanager: dict[str, Any] | None = None
    """Labels of a firing alert of an Alertmanager payload; ``status`` among them is the alert's own."""
    beats: Beats | None = None


class Beats(Frozen):
    """Heartbeats of all ranks over some time, as the hang detector gets them."""

    for_s: float
    steps_done: int = 50
    silent_from: float = 0.0
    """The last step was completed so long before the first beat."""
    activity: str = ""
    process_state: str = "S"
    stopped: tuple[int, ...] = ()
    idle: bool = True
    busy: tuple[int, ...] = ()
    """Ranks that use the processor while the others do not."""
    ended: tuple[int, ...] = ()
    """Ranks that have ended with status 0."""
    paused: bool = False
    step_s: float = 0.5
    moves: bool = False
    """Steps go on: the newest was just completed."""
    vitals: Vitals | None = None
    """Vitals of the GPUs and ports of all machines meanwhile."""


class Expected(Frozen):
    """The expected result. ``class`` empty: nothing at all is done."""

    incident_class: RecordedClass | None = Field(None, alias="class")
    culprits: tuple[str, ...] = ()
    """Machines that are evicted, all of them."""
    scope: Scope | None = None
    serve: tuple[str, ...] = ()
    """The job's machines at the end, by slot; empty: not looked at."""
    actions: tuple[str, ...] = ()
    """Kinds of actions, in the order in which they began; ``check`` as ``check:matmul``."""
    ends: IncidentState = IncidentState.RECOVERED
    code: Literal["v1", "v2"] | None = None
    attempts: int = 1
    incidents: int = 1
    joined: bool = False
    """Whether a signal, or what a person asked for, joined an incident."""
    restored: tuple[int, ...] | None = None
    """Step that each new epoch began with, in order; None: not looked at."""
    says: str = ""
    """Part of the summary of the last incident."""
    answers: str = ""
    """Part of the gateway's answer to a person who acts while a playbook runs (the world's ``acts_at``)."""
    suspect: tuple[int, ...] | None = None
    """Checkpoints in S3 that are suspect afterwards; None: not looked at."""


class Scenario(Frozen):
    """One."""

    name: str
    covers: tuple[str, ...] = ()
    """Rows of ByteRobust table 1, or triggers of the reference, in its words."""
    setup: Setup = Setup()
    world: dict[str, Any] = Field(default_factory=dict)
    signals: tuple[Signal, ...]
    answer: Literal["approve", "refuse"] | None = None
    """Answer of a person to the playbook's question; None: no answer."""
    expect: Expected = Expected()

    def __str__(self) -> str:
        return self.name

    @property
    def one_policy(self) -> bool:
        """Whether one policy holds from its beginning to its end."""
        return all(signal.policy is None for signal in self.signals)

    @property
    def quiet(self) -> bool:
        """Whether nothing may be done."""
        return self.expect.incident_class is None


Signal.model_rebuild()
Scenario.model_rebuild()


def load(path: Path) -> list[Scenario]:
    """Load all scenarios of a file, or of all ``*.yaml`` of a folder.

    Raises:
        ValueError: there is none, one is malformed, or two have one name.
    """
    found: list[Scenario] = []
    for file in sorted(path.glob("*.yaml")) if path.is_dir() else [path]:
        for entry in yaml.load(file.read_text(), Loader=yaml.CSafeLoader):
            try:
                found.append(Scenario.model_validate(entry))
            except ValueError as error:
                raise ValueError(f"{file.name}: {entry.get('name')}: {error}") from None
    if not found:
        raise ValueError(f"{path}: no scenarios")
    names = [one.name for one in found]
    if doubled := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"given twice: {sorted(doubled)}")
    return found
