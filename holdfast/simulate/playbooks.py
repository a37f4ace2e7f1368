"""Steps of the playbooks that a simulated job goes through: one declaration per incident class.

A test holds each against the flow of the class: the same tasks, in the order in which the flow takes them at the first
attempt. What a step costs and does in a simulation is in :mod:`holdfast.simulate.job`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from holdfast.models.alert import IncidentClass


class Step(StrEnum):
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


_REPLACE = (Step.EVICT, Step.SWAP_IN, Step.RESUME)
_DIAGNOSED = (Step.PAUSE, Step.DIAGNOSE, Step.ESCALATE, *_REPLACE, Step.REPLENISH)

PLAYBOOKS: Mapping[IncidentClass, tuple[Step, ...]] = {
    IncidentClass.MACHINE_FAULT: (Step.PAUSE, *_REPLACE, Step.REPLENISH),
    # Restarted first where processes are kept, and policies/restore/restart_first.py lets it.
    IncidentClass.JOB_CRASH: (Step.PAUSE, Step.RESTART_FIRST, *_DIAGNOSED[1:]),
    IncidentClass.NETWORK_FAULT: _DIAGNOSED,
    IncidentClass.HOST_PRESSURE: _DIAGNOSED,
    IncidentClass.STORAGE_FAULT: (
        Step.PAUSE,
        Step.AWAIT_HEALTHY,
        Step.DIAGNOSE,
        Step.ESCALATE,
        *_REPLACE,
        Step.REPLENISH,
    ),
    IncidentClass.NAN_LOSS: (
        Step.PAUSE,
        Step.MARK_SUSPECT,
        Step.DIAGNOSE,
        Step.ESCALATE,
        *_REPLACE,
        Step.REPLENISH,
    ),
    IncidentClass.SILENT_CORRUPTION: (
        Step.PERMITTED,
        Step.PAUSE,
        Step.MARK_SUSPECT,
        Step.DIAGNOSE,
        Step.ESCALATE,
        *_REPLACE,
        Step.REPLENISH,
    ),
    IncidentClass.JOB_HANG: (Step.DUMP_STACKS, *_DIAGNOSED),
    IncidentClass.FAIL_SLOW: (Step.VOTE_SLOW, Step.PERMITTED, Step.HOLD, *_DIAGNOSED),
    IncidentClass.EXTERNAL_SERVICE: (Step.PAUSE, Step.AWAIT_HEALTHY, Step.ESCALATE, *_REPLACE),
    IncidentClass.USER_CODE_ERROR: (Step.PAUSE, Step.ESCALATE, *_REPLACE),
    IncidentClass.PLANNED_MOVE: (Step.CHOOSE, Step.BRING, Step.SWITCH, Step.HAND_BACK, Step.REPLENISH),
    IncidentClass.CODE_UPDATE: (
        Step.HOLD,
        Step.PAUSE,
        Step.REPLACE_LOST,
        Step.APPLY_UPDATE,
        Step.RESUME,
    ),
}

NOT_SIMULATED = frozenset({IncidentClass.CHECKPOINT_UNRESTORABLE, IncidentClass.SCALE_JOB})
"""Classes without a fault: a simulated job neither rehearses restores nor is scaled by a person."""


def steps(incident_class: IncidentClass) -> tuple[Step, ...]:
    """Return the steps of a class; one that is not declared here recovers as from a crash."""
    return PLAYBOOKS.get(incident_class, PLAYBOOKS[IncidentClass.JOB_CRASH])
