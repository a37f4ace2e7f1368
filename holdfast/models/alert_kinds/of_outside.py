"""Signals of services that a job needs, and requests of people."""

from __future__ import annotations

from holdfast.models.alert_kinds.kind import Kind, SignalScope
from holdfast.models.alert_kinds.meaning import NEVER, Beside, explains
from holdfast.models.classes import IncidentClass

EXTERNAL_SERVICE = Kind(
    "external_service",
    SignalScope.JOB,
    "A service that the job needs does not answer: tracker, licence server, data service.",
    evidence="service, error",
    meaning=explains(IncidentClass.EXTERNAL_SERVICE, Beside.RAISED, same_machine=False),
    precedence=510,
)
MANUAL = Kind(
    "manual",
    SignalScope.PERSON,
    "Raised by a person.",
    evidence="by, text, class",
    identified_by=("class",),
    meaning=NEVER,
    precedence=940,
    unless="at once, as the class that it names",
)
CODE_UPDATE = Kind(
    "code_update",
    SignalScope.PERSON,
    "An engineer ships a change.",
    evidence="version, when (now or lazy), text, by",
    identified_by=("version",),
    meaning=NEVER,
    precedence=950,
    unless="`code_update`, at once or with the next restart",
)
PLANNED_MOVE = Kind(
    "planned_move",
    SignalScope.PERSON,
    "A job is asked to leave a machine that works.",
    evidence="source, text, by, to (standby that is wanted), deadline_at (Unix seconds)",
    meaning=NEVER,
    precedence=960,
    unless="`planned_move`, at once",
)
