"""Outcomes of a replay that show nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.models.alert import IncidentClass
from holdfast.policies.diagnose.agreement import Played
from holdfast.tasks import replay
from holdfast.tasks.replay_group import Ended

NOTHING = Ended(ok=False, played=Played(size=0))
FAILED = Ended(ok=False, played=Played(size=8))


@pytest.mark.parametrize(
    ("incident_class", "ended", "evident"),
    [
        (IncidentClass.NAN_LOSS, NOTHING, False),
        (IncidentClass.NAN_LOSS, FAILED, True),
        (IncidentClass.JOB_HANG, NOTHING, True),
    ],
)
def test_groups_that_came_to_no_result_are_no_evidence_against_the_code(
    incident_class: IncidentClass, ended: Ended, evident: bool
) -> None:
    """A store that is away has every group fail; only a job that hangs shows its fault by that."""
    case: Any = SimpleNamespace(incident_class=incident_class)
    assert (not replay._nothing_seen(case, ([NOTHING, ended], [NOTHING, NOTHING]))) is evident
