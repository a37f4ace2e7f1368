"""A role of a simulated job: its fields in the job file, and how often its replicas fail."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, model_validator

from holdfast.models.base import Duration, Given
from holdfast.models.role_rules import no_room, problem
from holdfast.models.roles import (
    MOST_REPLICAS,
    TRAINER,
    Restart,
    RoleKind,
    RoleName,
    RoleSpec,
    WithTrainer,
)

DAY_H = 24.0


class SimulatedRole(Given):
    """One role below ``roles`` of a scenario file. Of ``trainer`` only ``needs`` counts."""

    kind: RoleKind = RoleKind.DYNAMIC
    replicas: int = Field(1, ge=0, le=MOST_REPLICAS)
    machines: int = Field(0, ge=0)
    per_machine: int = Field(0, ge=0)
    needs: tuple[RoleName, ...] = ()
    with_trainer: WithTrainer = WithTrainer.STAY
    restart: Restart = Restart()
    failures_per_day: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Failures of one replica that works."""
    hours_between_failures: float | None = Field(None, gt=0, allow_inf_nan=False)
    """The same, the other way round."""
    start_s: Duration = 0.0
    """From the start of a replica's process until it can be reached; a start that fails lasts as long."""
    bad_starts: float = Field(0.0, ge=0, lt=1)
    """Probability that the start after a failure fails, and so does the next one, and so on."""
    machine_share: float = Field(0.0, ge=0, le=1)
    """Share of the failures that come back at every start on the same machine."""
    move_s: Duration = 30.0
    """From the moment a replica's machine leaves the job until its replica has surely ended, and has another place."""
    stops: float = Field(0.0, ge=0, le=1)
    """Share of the trainer's speed that is lost while any replica cannot be reached; the trainer must need the role."""

    @model_validator(mode="after")
    def _one_rate(self) -> SimulatedRole:
        if self.failures_per_day and self.hours_between_failures is not None:
            raise ValueError("failures_per_day and hours_between_failures: expected one of them")
        return self

    @property
    def failures_per_s(self) -> float:
        """Failures of one replica per second in which it works."""
        hours = self.hours_between_failures
        return 1 / (hours * 3600) if hours is not None else self.failures_per_day / (DAY_H * 3600)

    def spec(self, name: str) -> RoleSpec:
        """Return the role as a job file has it."""
        same = {field: getattr(self, field) for field in RoleSpec.model_fields if hasattr(self, field)}
        return RoleSpec.model_validate({**same, "script": "" if name == TRAINER else f"{name}.py"})


def specs(roles: Mapping[str, SimulatedRole]) -> dict[str, RoleSpec]:
    """Return the roles as a job file has them."""
    return {name: role.spec(name) for name, role in roles.items()}


def wrong(roles: Mapping[str, SimulatedRole], machines: int) -> str:
    """Return the first thing that is wrong with the roles of a scenario; empty: nothing."""
    specified = specs(roles)
    needed = roles[TRAINER].needs if TRAINER in roles else ()
    for name, role in roles.items():
        if name == TRAINER and role != SimulatedRole(kind=role.kind, needs=role.needs):
            return "roles.trainer: only `needs` may stand here; its faults are the scenario's symptoms"
        if role.stops and (name not in needed or role.kind is not RoleKind.ORDERED):
            return (
                f"roles.{name}.stops = {role.stops:g}: only an ordered role that the trainer needs stops it; expected "
                f"`kind: ordered`, and {name} in `roles.trainer.needs`"
            )
        good_after_s = role.restart.good_after_s
        if (role.bad_starts or role.machine_share) and role.start_s >= good_after_s:
            return (
                f"roles.{name}.start_s = {role.start_s:g}: a start that fails so late counts as a good run "
                f"(restart.good_after_s = {good_after_s:g}), and would be repeated without end on one machine; "
                "expected a longer good_after_s, here and in the job file"
            )
    return problem(specified) or no_room(specified, machines)
