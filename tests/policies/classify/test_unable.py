"""Machines on which no rank can run."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.models.alert import Alert, AlertKind
from holdfast.policies.classify import unable
from holdfast.policies.config.policy import Policy

POLICY = Policy.load().classify


@pytest.mark.parametrize(
    ("kind", "evidence", "gone"),
    [
        ("machine_lost", {"probe": "connection refused"}, True),
        ("gpu_lost", {}, True),
        ("xid", {"xid": 79}, True),
        ("xid", {"xid": 13}, False),
        ("kernel_panic", {"what": "panic"}, True),
        ("kernel_panic", {"what": "soft lockup"}, False),
        ("sxid", {"fatal": True}, True),
        ("gpu_row_remap_failed", {}, False),
        ("gpu_ecc_uncorrectable", {}, False),
        ("gpu_throttled", {}, False),
    ],
)
def test_only_what_is_gone_cannot_run(kind: str, evidence: dict[str, Any], gone: bool) -> None:
    """A machine that may fail again runs, where a person keeps it."""
    alert = Alert(kind=AlertKind(kind), machine="m1", at=1.0, evidence=evidence)
    assert set(unable.find([alert], POLICY)) == ({"m1"} if gone else set())
