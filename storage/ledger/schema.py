"""Tables of the ledger. Times are seconds since the Unix epoch; columns are named as the models' fields."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel
from sqlalchemy import (
    JSON,
    BigInteger,
    Dialect,
    Double,
    Enum,
    ForeignKeyConstraint,
    Index,
    String,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from holdfast.models.alert import AlertKind, IncidentClass, IncidentState
from holdfast.models.history import ActionState
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState, Scope
from holdfast.models.repair import Ask, RepairState

HEAD = "0012"
"""The newest migration (`migrations/versions`): what the tables below are."""


class RecordedClassColumn(TypeDecorator[IncidentClass]):
    """Stored as its name; one that another package brought stays readable when that is gone."""

    impl = String(32)
    cache_ok = True

    def process_bind_param(self, value: IncidentClass | None, dialect: Dialect) -> str | None:
        """Return its name."""
        return None if value is None else str(value.value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> IncidentClass | None:
        """Return the class of that name."""
        return None if value is None else IncidentClass.declare(value)


M = TypeVar("M", bound=BaseModel)


def _values(kind: type[enum.Enum]) -> Sequence[str]:
    return [str(member.value) for member in kind]


class Base(DeclarativeBase):
    """Enumerations are stored as their values in plain strings, so that a new member needs no migration."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {
        enum.Enum: Enum(enum.Enum, native_enum=False, length=32, values_callable=_values),
        float: Double(),
        dict[str, Any]: JSON(none_as_null=True),
        list[Any]: JSON(none_as_null=True),
        str: String(),
    }

    def to(self, model: type[M]) -> M:
        """Return this row as ``model``, whose fields are columns of the same names."""
        return model.model_validate({name: getattr(self, name) for name in model.model_fields})


class MetaRow(Base):
    """Single facts, such as code updates that wait."""

    __tablename__ = "meta"
    key: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]


class JobRow(Base):
    """One job; submitted again under the same name it is the same row."""

    __tablename__ = "jobs"
    name: Mapped[str] = mapped_column(primary_key=True)
    spec: Mapped[dict[str, Any]]
    state: Mapped[JobState]
    epoch: Mapped[int]
    code_version: Mapped[str]
    machines: Mapped[list[Any]]
    submitted_at: Mapped[float]
    done_at: Mapped[float | None]
    submitted_epoch: Mapped[int]
    """Epoch when it was submitted; what earlier submissions did does not count as its progress."""
    incidents: Mapped[int]
    """Incidents ever opened: the number of the newest."""


class MachineRow(Base):
    """One machine."""

    __tablename__ = "machines"
    name: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[MachineState] = mapped_column(index=True)
    incarnation: Mapped[str] = mapped_column(default="")
    address: Mapped[str] = mapped_column(default="")
    data_address: Mapped[str] = mapped_column(default="")
    job: Mapped[str | None] = mapped_column(index=True)
    role: Mapped[str] = mapped_column(default="", server_default="")
    cordon_scope: Mapped[Scope | None]
    cordon_reason: Mapped[str | None]
    seen_at: Mapped[float] = mapped_column(default=0.0)
    registered_at: Mapped[float] = mapped_column(default=0.0)
    location: Mapped[dict[str, Any]] = mapped_column(default=dict)
    lease_s: Mapped[float] = mapped_column(default=0.0, server_default="0")


class VersionRow(Base):
    """One stored version of a job's code."""

    __tablename__ = "code_versions"
    __table_args__ = (UniqueConstraint("job", "version"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    job: Mapped[str]
    version: Mapped[str]
    key: Mapped[str]
    note: Mapped[str]
    by: Mapped[str]
    created_at: Mapped[float]
    bad: Mapped[bool] = mapped_column(default=False)
    bad_reason: Mapped[str] = mapped_column(default="")


class AlertRow(Base):
    """Every alert that was received, with what became of it."""

    __tablename__ = "alerts"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[AlertKind]
    job: Mapped[str | None]
    machine: Mapped[str | None]
    epoch: Mapped[int | None]
    incident_id: Mapped[str | None] = mapped_column(index=True)
    outcome: Mapped[str]
    recorded_at: Mapped[float] = mapped_column(index=True)
    body: Mapped[dict[str, Any]]


class IncidentRow(Base):
    """One incident."""

    __tablename__ = "incidents"
    __table_args__ = (
        Index("incidents_by_job", "job", "n"),
        Index("incidents_by_state", "state", "opened_at"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    job: Mapped[str]
    n: Mapped[int]
    incident_class: Mapped[IncidentClass] = mapped_column(RecordedClassColumn())
    state: Mapped[IncidentState]
    epoch: Mapped[int]
    attempt: Mapped[int]
    machine: Mapped[str | None]
    rank: Mapped[int | None]
    confidence: Mapped[float]
    reasons: Mapped[list[Any]]
    injected_at: Mapped[float | None]
    detected_at: Mapped[float]
    opened_at: Mapped[float]
    first_task_at: Mapped[float | None]
    recovered_at: Mapped[float | None]
    closed_at: Mapped[float | None]
    flow_run_id: Mapped[str | None]
    last_good_step: Mapped[int | None] = mapped_column(BigInteger)
    summary: Mapped[str]


class IncidentAlertRow(Base):
    """An alert that belongs to an incident; the same signal (key) belongs to it once."""

    __tablename__ = "incident_alerts"
    __table_args__ = (
        UniqueConstraint("incident_id", "key"),
        ForeignKeyConstraint(["incident_id"], ["incidents.id"]),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    incident_id: Mapped[str]
    key: Mapped[str]
    epoch: Mapped[int | None]
    body: Mapped[dict[str, Any]]


class ActionRow(Base):
    """Intent and result of one act of a playbook."""

    __tablename__ = "actions"
    __table_args__ = (
        UniqueConstraint("incident_id", "key"),
        ForeignKeyConstraint(["incident_id"], ["incidents.id"]),
        Index("actions_by_kind", "kind", "done_at"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    incident_id: Mapped[str]
    key: Mapped[str]
    kind: Mapped[str]
    intent: Mapped[dict[str, Any]]
    attempt: Mapped[int]
    state: Mapped[ActionState]
    result: Mapped[dict[str, Any]]
    begun_at: Mapped[float]
    done_at: Mapped[float | None]


class ByHandRow(Base):
    """Requests of people about machines, incidents and jobs, and their logins."""

    __tablename__ = "by_hand"
    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float]
    by: Mapped[str]
    via: Mapped[str]
    source: Mapped[str] = mapped_column(default="", server_default="")
    act: Mapped[str]
    target: Mapped[str] = mapped_column(index=True)
    reason: Mapped[str]
    state: Mapped[ActionState]
    outcome: Mapped[str] = mapped_column(default="")
    done_at: Mapped[float | None]


class EpochRow(Base):
    """One generation of a job's ranks."""

    __tablename__ = "epochs"
    job: Mapped[str] = mapped_column(primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True)
    start_step: Mapped[int] = mapped_column(BigInteger)
    code_version: Mapped[str]
    machines: Mapped[list[Any]]
    reason: Mapped[str]
    incident_id: Mapped[str | None]
    opened_at: Mapped[float]
    first_step: Mapped[int | None] = mapped_column(BigInteger)
    first_step_at: Mapped[float | None]
    last_step: Mapped[int | None] = mapped_column(BigInteger)
    last_step_at: Mapped[float | None]
    closed_at: Mapped[float | None]
    close_reason: Mapped[str | None]


class StretchRow(Base):
    """Consecutive steps of an epoch, cut every few minutes: what ETTR is computed from."""

    __tablename__ = "stretches"
    __table_args__ = (Index("stretches_by_epoch", "job", "epoch", "id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    job: Mapped[str]
    epoch: Mapped[int]
    first_step: Mapped[int] = mapped_column(BigInteger)
    last_step: Mapped[int] = mapped_column(BigInteger)
    begun_at: Mapped[float]
    ended_at: Mapped[float]
    stall_s: Mapped[float] = mapped_column(default=0.0)


class StateChangeRow(Base):
    """Every change of a job's state, with its time."""

    __tablename__ = "job_states"
    id: Mapped[int] = mapped_column(primary_key=True)
    job: Mapped[str] = mapped_column(index=True)
    state: Mapped[JobState]
    at: Mapped[float]


class CheckpointRow(Base):
    """One checkpoint in S3."""

    __tablename__ = "checkpoints"
    job: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True)
    world_size: Mapped[int]
    key: Mapped[str]
    suspect: Mapped[bool]
    suspect_reason: Mapped[str]
    saved_at: Mapped[float]
    nbytes: Mapped[int] = mapped_column(BigInteger)


class SuspicionRow(Base):
    """Steps of a job that are suspect, also in checkpoints whose upload ends only later."""

    __tablename__ = "suspicions"
    id: Mapped[int] = mapped_column(primary_key=True)
    job: Mapped[str] = mapped_column(index=True)
    from_step: Mapped[int] = mapped_column(BigInteger)
    to_epoch: Mapped[int]
    reason: Mapped[str]


class PoolRow(Base):
    """Every size that the standby pool was given; the newest counts."""

    __tablename__ = "pool"
    id: Mapped[int] = mapped_column(primary_key=True)
    target: Mapped[int]
    reason: Mapped[str]
    at: Mapped[float]


class PoolGroupRow(Base):
    """The part of a pool size that falls to one group of machines."""

    __tablename__ = "pool_groups"
    __table_args__ = (ForeignKeyConstraint(["pool_id"], ["pool.id"]),)
    pool_id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    target: Mapped[int]


class JobLeaseRow(Base):
    """The one playbook run that may act on a job."""

    __tablename__ = "job_leases"
    job: Mapped[str] = mapped_column(primary_key=True)
    incident_id: Mapped[str]
    attempt: Mapped[int]
    run: Mapped[str]
    """Its flow run."""
    holder: Mapped[str]
    """The process that took it, with a unique word: the same run started twice is two holders."""
    until: Mapped[float]


class LeaderRow(Base):
    """The one of several gateways that acts."""

    __tablename__ = "leaders"
    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    """Empty: it has resigned."""
    url: Mapped[str]
    token: Mapped[int] = mapped_column(BigInteger)
    renewals: Mapped[int] = mapped_column(BigInteger)


class WaitRow(Base):
    """An incident that waits for something, and when it is tried again."""

    __tablename__ = "waits"
    incident_id: Mapped[str] = mapped_column(primary_key=True)
    job: Mapped[str] = mapped_column(index=True)
    missing: Mapped[str]
    why: Mapped[str]
    since: Mapped[float]
    next_at: Mapped[float]
    times: Mapped[int]
    runs_on: Mapped[bool]
    over: Mapped[bool]
    """It came to an end; kept for how often the incident waited."""


class InputRow(Base):
    """Inputs of one decision about an incident, as far as no other table keeps them: for replays."""

    __tablename__ = "inputs"
    incident_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[float]
    body: Mapped[dict[str, Any]]


class RepairRow(Base):
    """One repair of one machine, with its steps."""

    __tablename__ = "repairs"
    __table_args__ = (
        Index("repairs_by_machine", "machine", "id"),
        Index("repairs_by_state", "state"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    machine: Mapped[str]
    incident_id: Mapped[str | None]
    incarnation: Mapped[str]
    asked: Mapped[Ask]
    why: Mapped[str]
    state: Mapped[RepairState]
    opened_at: Mapped[float]
    closed_at: Mapped[float | None]
    holder: Mapped[str] = mapped_column(default="")
    until: Mapped[float] = mapped_column(default=0.0)
    outcome: Mapped[str] = mapped_column(default="")
    steps: Mapped[list[Any]]
