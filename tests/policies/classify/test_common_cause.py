"""Slow paces that many machines explain alike."""

from __future__ import annotations

import pytest

from holdfast.models.alert import AlertKind, Classification, IncidentClass
from holdfast.policies.classify import common_cause
from holdfast.policies.classify.decision import JobContext
from holdfast.policies.classify.incident_class import classify
from holdfast.policies.config.policy import Policy
from tests.policies.make import NOW, alert, job

POLICY = Policy.load()


def reason(kinds: dict[str, str], machines: int = 8) -> str:
    """By machine, the kind that is reported of it."""
    alerts = [alert(AlertKind(kind), machine=name) for name, kind in kinds.items()]
    return common_cause.of_pace(alerts, job(machines), POLICY)


def test_as_many_as_may_be_evicted_are_no_common_cause() -> None:
    """A quarter of the job, and always one."""
    assert reason({}) == ""
    assert reason({"m1": "gpu_throttled"}, machines=2) == ""
    assert reason({"m1": "gpu_throttled", "m5": "gpu_throttled"}) == ""


def test_more_of_one_kind_are() -> None:
    """The reason has their number, the limit and the size of the job."""
    found = reason(dict.fromkeys(("m0", "m1", "m2"), "gpu_throttled"))
    assert "gpu throttled on 3 machines at once" in found
    assert "limit of 2 for 8 machines" in found


@pytest.mark.parametrize("kind", ["rank_log", "disk_full", "nic_down", "clock_skew"])
def test_kinds_that_explain_no_slow_pace_do_not_count(kind: str) -> None:
    """Each has its own meaning."""
    assert reason(dict.fromkeys(("m0", "m1", "m2"), kind)) == ""


def test_other_kinds_and_other_jobs_machines_do_not_add_up() -> None:
    """Two hot GPUs and a port with errors are three faults; of the same machine again, one."""
    assert reason({"m0": "gpu_throttled", "m1": "gpu_throttled", "m2": "nic_errors"}) == ""
    assert reason({"m0": "gpu_throttled", "m1": "gpu_throttled", "x9": "gpu_throttled"}) == ""


@pytest.mark.parametrize(
    ("beside", "expected", "machine"),
    [
        (None, IncidentClass.FAIL_SLOW, None),
        ("gpu_pcie_replays", IncidentClass.FAIL_SLOW, None),
        ("nic_errors", IncidentClass.NETWORK_FAULT, "m5"),
    ],
)
def test_another_fault_in_a_hot_room_is_found(
    beside: str | None, expected: IncidentClass, machine: str | None
) -> None:
    """The heat of four machines is no reason to keep a port with errors."""
    alerts = [alert(AlertKind.GPU_THROTTLED, machine=f"m{at}") for at in range(4)]
    alerts += [alert(AlertKind(beside), machine="m5")] if beside else []
    slow = alert(AlertKind.MFU_DECLINE, evidence={"value": 0.3, "median": 0.5})
    found = classify([*alerts, slow], JobContext(job=job(8), now=NOW), POLICY)
    assert isinstance(found, Classification)
    assert (found.incident_class, found.machine) == (expected, machine)
    assert ("common cause" in " ".join(found.reasons)) is (expected is IncidentClass.FAIL_SLOW)
