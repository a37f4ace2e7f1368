"""A machine: a host with accelerators, and the agent on it."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from holdfast.models.base import Frozen
from holdfast.models.location import Location
from holdfast.models.names import Incarnation, JobName, MachineName
from holdfast.models.roles import RoleName


class MachineState(StrEnum):
    """The state of a machine; see design section 1."""

    ACTIVE = "active"
    STANDBY = "standby"
    PROVISIONING = "provisioning"
    DRAINING = "draining"
    CORDONED = "cordoned"
    GONE = "gone"


OUT = frozenset({MachineState.CORDONED, MachineState.GONE})
"""Out of service until the machine is released."""


class Scope(StrEnum):
    """The jobs that a cordon keeps away: this one only, or all."""

    JOB = "job"
    CLUSTER = "cluster"


class Machine(Frozen):
    """A machine as the ledger knows it."""

    name: MachineName
    state: MachineState
    incarnation: Incarnation = ""
    address: str = ""
    """``host:port`` of the agent's HTTP API; empty before it registered."""
    data_address: str = ""
    """``host:port`` where the agent takes and gives checkpoint shards."""
    job: JobName | None = None
    role: RoleName | Literal[""] = ""
    """The role of the job that has it for itself; empty: it carries ranks, or serves no job."""
    cordon_scope: Scope | None = None
    cordon_reason: str | None = None
    seen_at: float = 0.0
    registered_at: float = 0.0
    location: Location = Field(default_factory=dict)
    """As its agent reported it; the policy file's patterns go before it."""
    lease_s: float = 0.0
    """The longest lease that the gateway may have granted it, in seconds; 0: the usual one."""

    def serves(self, job: str) -> bool:
        """Return whether it is in service for ``job``."""
        return self.state is MachineState.ACTIVE and self.job == job
