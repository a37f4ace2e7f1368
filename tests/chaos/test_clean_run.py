"""The run without faults begins once its machines are back."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.chaos import clean_run
from holdfast.models.machine import MachineState


def test_the_reference_waits_for_machines_that_are_on_their_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that the last fault hit registers some seconds after its release."""
    monkeypatch.setattr(clean_run, "_POLL_S", 0.0)
    standby, gone = (SimpleNamespace(state=each) for each in (MachineState.STANDBY, MachineState.GONE))
    answers = [[standby, gone], [standby, gone], [standby, standby], []]
    gateway: Any = SimpleNamespace(machines=lambda: answers.pop(0))
    clean_run._await_machines(gateway, 2, time.time() + 3600)
    assert answers == [[]]
    clean_run._await_machines(SimpleNamespace(machines=list), 2, time.time() - 1)  # type: ignore[arg-type]
