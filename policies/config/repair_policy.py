"""Settings for the repair of evicted machines: the ``repair`` section of the policy file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from holdfast.models.base import Given
from holdfast.models.repair import Step

Seconds = Field(gt=0)


class RepairPolicy(Given):
    """How machines are repaired; the ``repair`` section of the policy file."""

    enabled: bool | Literal["auto"]
    most: int = Field(ge=0)
    window_s: float = Seconds
    shell: str
    restart_command: str
    diagnose: str
    reset_s: float = Seconds
    restart_s: float = Seconds
    diagnose_s: float = Seconds
    return_s: float = Seconds
    burn_in_s: float = Field(ge=0)
    checks_s: float = Seconds
    ticket_s: float = Seconds

    def at_most_s(self, step: Step) -> float:
        """Return how long one step may take, in seconds."""
        return {
            Step.RESET_GPU: self.reset_s,
            Step.RESTART_MACHINE: self.restart_s,
            Step.DIAGNOSE: self.diagnose_s,
            Step.RETURN: self.return_s,
            Step.CHECK: self.burn_in_s + self.checks_s,
            Step.ADMIT: self.return_s,
            Step.TICKET: self.ticket_s,
        }[step]
