"""Incident classes: one playbook each."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from holdfast.models.open_enum import OpenEnum


class IncidentClass(OpenEnum):
    """One playbook each, in ``flows/`` under the same name; other packages declare more (:mod:`holdfast.plugins`)."""

    JOB_CRASH = "job_crash"
    MACHINE_FAULT = "machine_fault"
    JOB_HANG = "job_hang"
    NAN_LOSS = "nan_loss"
    USER_CODE_ERROR = "user_code_error"
    CODE_UPDATE = "code_update"
    NETWORK_FAULT = "network_fault"
    STORAGE_FAULT = "storage_fault"
    HOST_PRESSURE = "host_pressure"
    FAIL_SLOW = "fail_slow"
    SILENT_CORRUPTION = "silent_corruption"
    EXTERNAL_SERVICE = "external_service"
    CHECKPOINT_UNRESTORABLE = "checkpoint_unrestorable"
    SCALE_JOB = "scale_job"
    PLANNED_MOVE = "planned_move"


ON_PURPOSE = frozenset({IncidentClass.CODE_UPDATE, IncidentClass.SCALE_JOB, IncidentClass.PLANNED_MOVE})
"""Asked for, of a healthy job: no attempt to recover it."""


BESIDE_TRAINING = frozenset({IncidentClass.CHECKPOINT_UNRESTORABLE, IncidentClass.PLANNED_MOVE})
"""Incidents of a job that runs on: their playbooks work beside the training, and yield to any other incident of it.

A planned move stops the ranks only to start them again at once; until then the job counts as recovering."""


def _recorded(value: Any) -> Any:
    return IncidentClass.declare(value) if isinstance(value, str) else value


RecordedClass = Annotated[IncidentClass, BeforeValidator(_recorded)]
"""The class of something that happened: readable also where the package that brought it is not installed."""
