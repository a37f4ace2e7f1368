from __future__ import annotations

import pytest

from holdfast.models.alert import Alert, AlertKind
from holdfast.policies.classify.importance import Importance, importance
from holdfast.policies.config.policy import Policy


@pytest.mark.parametrize(
    ("kind", "evidence", "expected"),
    [
        (AlertKind.RANK_EXIT, {"cascade": True}, Importance.ECHO),
        (AlertKind.RANK_EXIT, {"signal": "SIGKILL"}, Importance.SIGN),
        (AlertKind.GPU_LOST, {}, Importance.SIGN),
        (AlertKind.XID, {"xid": 79}, Importance.SIGN),
        (AlertKind.XID, {"xid": 13}, Importance.EVIDENCE),
        (AlertKind.HOST_FAULT, {"check": "other"}, Importance.EVIDENCE),
        (AlertKind.RANK_LOG, {"cascade": True}, Importance.EVIDENCE),
        (AlertKind.MANUAL, {}, Importance.SIGN),
        (AlertKind.HANG, {}, Importance.SIGN),
    ],
)
def test_cascading_failures_rank_below_evidence_and_evidence_below_signs(
    kind: AlertKind, evidence: dict[str, object], expected: Importance
) -> None:
    """By kind and evidence."""
    alert = Alert(kind=kind, job="gpt", machine="m0", at=1.0, evidence=evidence)
    assert importance(alert, Policy.load().classify) is expected
