"""Ranks that wait in the kernel: one machine's own storage, or storage that several share."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass
from holdfast.policies.classify import suspects
from holdfast.policies.classify.decision import JobContext
from holdfast.policies.classify.incident_class import classify
from tests.policies.make import NOW, alert, job

JOB = job(machines=4, per=2)


def hang(*blocked: int, machine: str | None = None, **more: Any) -> Alert:
    evidence = {"signals": ["silent", "stuck"], "silent_s": 31, "blocked": list(blocked), **more}
    return alert(AlertKind.HANG, machine=machine, evidence=evidence)


def mount(machine: str, device: str = "/data", **more: Any) -> Alert:
    return alert(AlertKind.MOUNT_UNRESPONSIVE, machine=machine, evidence={"device": device, **more})


STORAGE, HANG = IncidentClass.STORAGE_FAULT, IncidentClass.JOB_HANG


@pytest.mark.parametrize(
    ("alerts", "means", "accused"),
    [
        ([hang(2)], HANG, ()),  # its stacks show it: m1 alone, whose own it is
        ([hang(2, 3)], HANG, ()),
        ([hang(2, 3), mount("m1")], STORAGE, ("m1",)),
        ([hang(2), mount("m1", recovers=True)], STORAGE, ()),
        ([hang(2, 5)], STORAGE, ()),
        ([hang(0, 1, 2, 3, 4, 5, 6, 7)], STORAGE, ()),
        ([hang(0), mount("m3")], STORAGE, ()),
        ([hang(), mount("m1"), mount("m3")], STORAGE, ()),
        ([hang(), mount("m1"), mount("m3", device="/scratch")], STORAGE, ("m1", "m3")),
        ([hang(2, 5), alert(AlertKind.GPU_LOST, machine="m3")], IncidentClass.MACHINE_FAULT, ("m3",)),
        ([hang(2, 5, stopped=[5])], HANG, ()),
        ([hang(machine="m1", stopped=[2]), mount("m1"), mount("m3")], HANG, ("m1",)),  # no storage stopped it
        ([hang(2, 99)], HANG, ()),
    ],
)
def test_one_machine_alone_waits_for_its_own_storage_and_several_for_what_they_share(
    alerts: list[Alert], means: IncidentClass, accused: tuple[str, ...]
) -> None:
    """Nor does a server that its client names cost the machine that waits for it."""
    decision = classify(alerts, JobContext(job=JOB, now=NOW))
    assert isinstance(decision, Classification)
    assert decision.incident_class is means
    assert suspects.named(alerts, decision.machine, JOB) == accused


def test_the_machine_that_reported_first_is_cleared_by_the_second() -> None:
    """The incident was opened for it; the other one's report came while it was worked on."""
    alerts = [hang(), mount("m1")]
    decision = classify(alerts, JobContext(job=JOB, now=NOW))
    assert isinstance(decision, Classification)
    assert decision.machine == "m1"
    assert suspects.named([*alerts, mount("m3")], "m1", JOB) == ()
    pressed = alert(AlertKind.MOUNT_READONLY, machine="m1", evidence={"device": "/local"})
    assert suspects.named([*alerts, mount("m3"), pressed], "m1", JOB) == ("m1",)
