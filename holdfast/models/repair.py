"""A repair: what is done with a machine that was evicted, until it stands by again or a person has a ticket."""

from __future__ import annotations

from enum import StrEnum

from holdfast.models.base import Frozen
from holdfast.models.names import Incarnation, IncidentId, MachineName


class Ask(StrEnum):
    """The repair that a verdict asks for. Later members are graver."""

    RESET_GPU = "reset_gpu"
    RESTART_MACHINE = "restart_machine"
    HANDS = "hands"
    """Something must be inspected, replaced or sent in."""


class Step(StrEnum):
    """One step of a repair."""

    RESET_GPU = "reset_gpu"
    RESTART_MACHINE = "restart_machine"
    DIAGNOSE = "diagnose"
    """The vendor's own diagnosis, at the level that the policy names."""
    RETURN = "return"
    """The driver restarts the machine; it registers and waits."""
    CHECK = "check"
    """Delivery checks, repeated until the burn-in is over."""
    ADMIT = "admit"
    TICKET = "ticket"


class StepState(StrEnum):
    """A step is written down before it is done, and again when its result was seen."""

    BEGUN = "begun"
    WORKED = "worked"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It could not be done here, and nothing is known by it: such as a tool that is not installed."""


class StepRecord(Frozen):
    """One step as it was done. Times are Unix seconds."""

    step: Step
    state: StepState
    begun_at: float
    at_most_s: float
    """It is ended then."""
    done_at: float | None = None
    said: str = ""
    """The outcome, for people."""
    times: int = 1
    """How often it was begun: a run may be killed in the middle of a step."""


class RepairState(StrEnum):
    """How far a repair is."""

    OPEN = "open"
    REPAIRED = "repaired"
    TICKET = "ticket"
    """A person has been asked."""
    CANCELLED = "cancelled"
    """The machine was released, replaced or retired meanwhile."""


class Repair(Frozen):
    """One repair of one machine. Times are Unix seconds."""

    id: int
    machine: MachineName
    incident_id: IncidentId | None = None
    incarnation: Incarnation = ""
    """The life that was evicted; the new one, since the machine returned."""
    asked: Ask
    why: str
    state: RepairState = RepairState.OPEN
    opened_at: float
    closed_at: float | None = None
    holder: str = ""
    """The run that does it."""
    until: float = 0.0
    """The holder's time is over then: another run may take over."""
    outcome: str = ""
    steps: tuple[StepRecord, ...] = ()

    @property
    def summary(self) -> str:
        """One line: the current step, or the outcome."""
        if self.state is not RepairState.OPEN:
            return f"{self.state.value}: {self.outcome}"
        if not self.steps:
            return f"{self.asked.value.replace('_', ' ')} is due"
        last = self.steps[-1]
        return f"{last.step.value.replace('_', ' ')} {last.state.value}" + (
            f": {last.said}" if last.said else ""
        )
