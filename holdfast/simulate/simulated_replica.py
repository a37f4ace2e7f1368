"""One replica of a simulated role, and what became of its role."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from holdfast.models.roles import ReplicaPhase, ReplicaPlace, ReplicaState
from holdfast.simulate.simulated_role import SimulatedRole

JOB = "simulated"


@dataclass
class RoleLife:
    """Account of a role. Seconds are those of its replicas together, but for the trainer's."""

    wanted_s: float = 0.0
    ran_s: float = 0.0
    """Its processes were there: what `holdfast status` counts."""
    ready_s: float = 0.0
    """They could be reached."""
    failures: int = 0
    restarts: int = 0
    moves: int = 0
    asked: int = 0
    """Persons that were asked."""
    trainer_s: float = 0.0
    """Time that the trainer lost to it."""


class ReplicaLife(StrEnum):
    """Present state of a replica."""

    AWAY = "away"
    """It has no process, and no place or none that answers."""
    STARTING = "starting"
    READY = "ready"
    PAUSING = "pausing"
    FAILED = "failed"


PHASES = {
    ReplicaLife.STARTING: ReplicaPhase.RUNNING,
    ReplicaLife.READY: ReplicaPhase.RUNNING,
    ReplicaLife.PAUSING: ReplicaPhase.PAUSING,
    ReplicaLife.FAILED: ReplicaPhase.FAILED,
}


@dataclass
class SimulatedReplica:
    """One replica: where it belongs, what it does, and what its next starts will be like."""

    name: str
    index: int
    role: SimulatedRole
    random: Random
    """Its faults: the same ones, whatever is done about them."""
    place: ReplicaPlace | None = None
    state: ReplicaLife = ReplicaLife.AWAY
    since: float = 0.0
    """When it came to its state."""
    began: float = 0.0
    turn: int = 0
    """Grows with each change of its state: what was meant for an earlier one is void."""
    failures: int = 0
    restarts: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    bad_starts: int = 0
    """Of the starts to come, those that fail."""
    bad_machine: str = ""
    """Where every start fails."""
    why: str = ""


def report(each: SimulatedReplica, place: ReplicaPlace) -> ReplicaState:
    """Return what its agent reports of a replica."""
    return ReplicaState(
        job=JOB,
        role=each.name,
        index=each.index,
        generation=place.generation,
        phase=PHASES[each.state],
        address="h:1" if each.state is ReplicaLife.READY else "",
        failures=each.failures,
        why=each.why,
    )
