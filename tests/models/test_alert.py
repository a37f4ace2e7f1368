"""Conditions under which two alerts are the same signal."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from holdfast.models.alert import GPU_KINDS, HOST_KINDS, MACHINE_KINDS, NETWORK_KINDS, Alert, AlertKind


def alert(kind: AlertKind, at: float = 1.0, **evidence: Any) -> Alert:
    return Alert(kind=kind, machine="m1", at=at, evidence=evidence)


@pytest.mark.parametrize("kind", sorted(GPU_KINDS | HOST_KINDS))
def test_devices_of_one_machine_are_distinguished(kind: AlertKind) -> None:
    """GPU 0 and GPU 1 are two signals; the same GPU later is one."""
    first, other, again = (alert(kind, device="0"), alert(kind, device="1"), alert(kind, at=9.0, device="0"))
    assert first.key != other.key
    assert first.key == again.key


@pytest.mark.parametrize("kind", sorted(NETWORK_KINDS))
def test_a_network_fault_that_comes_again_is_another(kind: AlertKind) -> None:
    """Ports come back by themselves: their second failure counts."""
    assert alert(kind, at=1.0, device="eth0").key != alert(kind, at=31.0, device="eth0").key


def test_xids_are_distinguished_and_fingerprints_win() -> None:
    """The code is part of the signal, unless the sender named it."""
    assert alert(AlertKind.XID, xid=31).key != alert(AlertKind.XID, xid=79).key
    named = Alert(kind=AlertKind.XID, at=1.0, fingerprint="f", evidence={"xid": 31})
    assert named.key == "f"


def test_signals_of_a_machine_are_grouped() -> None:
    """A rank's, a job's or a person's signals are no machine's."""
    others = set(AlertKind) - MACHINE_KINDS
    assert {AlertKind.RANK_EXIT, AlertKind.HANG, AlertKind.MANUAL, AlertKind.SWITCH_DOWN} <= others
    assert AlertKind.GPU_LOST in MACHINE_KINDS


@pytest.mark.parametrize("at", ["nan", "inf", "-inf"])
def test_a_time_that_is_no_number_is_refused(at: str) -> None:
    """JSON of Python carries NaN: such an alert is never too old, and no database gives it back."""
    with pytest.raises(ValidationError, match="finite number"):
        alert(AlertKind.MANUAL, at=float(at))
