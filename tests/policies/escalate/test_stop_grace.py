"""How long ranks that handle SIGTERM have."""

from __future__ import annotations

import pytest

from holdfast.models.alert import IncidentClass
from holdfast.policies.escalate.stop_grace import RECOVERY_S, grace_s


@pytest.mark.parametrize(
    ("wanted_s", "why", "given_s"),
    [
        (30.0, None, 30.0),
        (30.0, IncidentClass.CODE_UPDATE, 30.0),
        (30.0, IncidentClass.JOB_CRASH, RECOVERY_S),
        (0.1, IncidentClass.MACHINE_FAULT, 0.1),
        (0.0, IncidentClass.JOB_CRASH, 0.0),
        (0.0, None, 0.0),
    ],
)
def test_a_recovery_does_not_wait_for_scripts(
    wanted_s: float, why: IncidentClass | None, given_s: float
) -> None:
    """What a person or an update stops has what the job file says; a recovery is soon over."""
    assert grace_s(wanted_s, why) == given_s
