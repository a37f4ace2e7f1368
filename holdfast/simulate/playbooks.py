"""Steps of the playbooks that a simulated job goes through: one declaration per incident class.

A test holds each against the flow of the class: the same tasks, in the order in which the flow takes them at the first
attempt. What a step costs and does in a simulation is in :mod:`holdfast.simulate.recovery`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from holdfast.models.alert import IncidentClass


class PlaybookStep(StrEnum):
    """A task of ``holdfast.tasks``, by its name."""

    DUMP_STACKS = "dump_stacks"
    VOTE_SLOW = "vote_slow"
    PERMITTED = "permitted"
    HOLD = "hold_at_boundary"
    PAUSE = "pause"
    RESTART_FIRST = "restart_and_diagnose"
    MARK_SUSPECT = "mark_suspect"
    AWAIT_HEALTHY = "await_healthy"
    DIAGNOSE = "diagnose"
    ESCALATE = "escalate"
    REPLACE_LOST = "replace_lost"
    APPLY_UPDATE = "apply_update"
    EVICT = "evict"
    SWAP_IN = "swap_in"
    RESUME = "resume"
    REPLENISH = "replenish"
    CHOOSE = "choose"
    BRING = "bring"
    SWITCH = "switch"
    HAND_BACK = "hand_back"


_REPLACE = (PlaybookStep.EVICT, PlaybookStep.SWAP_IN, PlaybookStep.RESUME)
_DIAGNOSED = (
    PlaybookStep.PAUSE,
    PlaybookStep.DIAGNOSE,
    PlaybookStep.ESCALATE,
    *_REPLACE,
    PlaybookStep.REPLENISH,
)

PLAYBOOKS: Mapping[IncidentClass, tuple[PlaybookStep, ...]] = {
    IncidentClass.MACHINE_FAULT: (PlaybookStep.PAUSE, *_REPLACE, PlaybookStep.REPLENISH),
    # Restarted first where processes are kept, and policies/restore/restart_first.py lets it.
    IncidentClass.JOB_CRASH: (PlaybookStep.PAUSE, PlaybookStep.RESTART_FIRST, *_DIAGNOSED[1:]),
    IncidentClass.NETWORK_FAULT: _DIAGNOSED,
    IncidentClass.HOST_PRESSURE: _DIAGNOSED,
    IncidentClass.STORAGE_FAULT: (
        PlaybookStep.PAUSE,
        PlaybookStep.AWAIT_HEALTHY,
        PlaybookStep.DIAGNOSE,
        PlaybookStep.ESCALATE,
        *_REPLACE,
        PlaybookStep.REPLENISH,
    ),
    IncidentClass.NAN_LOSS: (
        PlaybookStep.PAUSE,
        PlaybookStep.MARK_SUSPECT,
        PlaybookStep.DIAGNOSE,
        PlaybookStep.ESCALATE,
        *_REPLACE,
        PlaybookStep.REPLENISH,
    ),
    IncidentClass.SILENT_CORRUPTION: (
        PlaybookStep.PERMITTED,
        PlaybookStep.PAUSE,
        PlaybookStep.MARK_SUSPECT,
        PlaybookStep.DIAGNOSE,
        PlaybookStep.ESCALATE,
        *_REPLACE,
        PlaybookStep.REPLENISH,
    ),
    IncidentClass.JOB_HANG: (PlaybookStep.DUMP_STACKS, *_DIAGNOSED),
    IncidentClass.FAIL_SLOW: (PlaybookStep.VOTE_SLOW, PlaybookStep.PERMITTED, PlaybookStep.HOLD, *_DIAGNOSED),
    IncidentClass.EXTERNAL_SERVICE: (
        PlaybookStep.PAUSE,
        PlaybookStep.AWAIT_HEALTHY,
        PlaybookStep.ESCALATE,
        *_REPLACE,
    ),
    IncidentClass.USER_CODE_ERROR: (PlaybookStep.PAUSE, PlaybookStep.ESCALATE, *_REPLACE),
    IncidentClass.PLANNED_MOVE: (
        PlaybookStep.CHOOSE,
        PlaybookStep.BRING,
        PlaybookStep.SWITCH,
        PlaybookStep.HAND_BACK,
        PlaybookStep.REPLENISH,
    ),
    IncidentClass.CODE_UPDATE: (
        PlaybookStep.HOLD,
        PlaybookStep.PAUSE,
        PlaybookStep.REPLACE_LOST,
        PlaybookStep.APPLY_UPDATE,
        PlaybookStep.RESUME,
    ),
}

NOT_SIMULATED = frozenset({IncidentClass.CHECKPOINT_UNRESTORABLE, IncidentClass.SCALE_JOB})
"""Classes without a fault: a simulated job neither rehearses restores nor is scaled by a person."""


def steps(incident_class: IncidentClass) -> tuple[PlaybookStep, ...]:
    """Return the steps of a class; one that is not declared here recovers as from a crash."""
    return PLAYBOOKS.get(incident_class, PLAYBOOKS[IncidentClass.JOB_CRASH])
