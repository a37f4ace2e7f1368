"""Processes that may outlive their epoch."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.models.agent import Rendezvous, Start
from holdfast.models.checkpoint import RestoreOrder, Tier
from holdfast.models.classes import IncidentClass
from holdfast.policies.config.policy import Policy
from holdfast.policies.restore.kept_processes import by_reason, describe, wait_s, why_ended, why_none

POLICY = Policy.load().keep_processes
NEVER = (IncidentClass.NAN_LOSS, IncidentClass.SILENT_CORRUPTION, IncidentClass.CODE_UPDATE)


def start(**fields: Any) -> Start:
    known: dict[str, Any] = {
        "job": "gpt",
        "epoch": 1,
        "incarnation": "i",
        "script": "train.py",
        "code_version": "v1",
        "ranks": (0, 1),
        "world_size": 4,
        "rendezvous": Rendezvous(host="h", port=1),
        "restore": RestoreOrder(step=3, tier=Tier.MEMORY),
        "keep": True,
    }
    return Start(**(known | fields))


def test_they_wait_in_a_crash_and_not_where_memory_may_be_wrong() -> None:
    assert wait_s(POLICY, IncidentClass.JOB_CRASH, again=False) == POLICY.wait_s > 0
    assert wait_s(POLICY, IncidentClass.MACHINE_FAULT, again=False) > 0
    assert [wait_s(POLICY, each, again=False) for each in NEVER] == [0.0] * 3


def test_they_do_not_wait_when_the_job_came_up_and_failed_again() -> None:
    assert wait_s(POLICY, IncidentClass.JOB_CRASH, again=True) == 0.0


def test_the_same_start_of_another_epoch_keeps_them() -> None:
    assert not why_ended(start(keep=False), start(epoch=2, rendezvous=Rendezvous(host="other", port=2)))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"keep": False}, "the playbook"),
        ({"restore": RestoreOrder()}, "nothing is restored"),
        ({"code_version": "v2"}, "the code"),
        ({"script": "other.py"}, "another script"),
        ({"args": ("--lr", "1")}, "other arguments"),
        ({"env": {"A": "1"}}, "another environment"),
        ({"ranks": (2, 3)}, "other ranks"),
        ({"world_size": 2}, "another number of ranks"),
    ],
)
def test_what_a_process_cannot_take_up_ends_it(changed: dict[str, Any], why: str) -> None:
    assert why in why_ended(start(), start(epoch=2, **changed))


def test_a_report_says_why_processes_were_not_kept() -> None:
    assert "nan_loss" in why_none(POLICY, IncidentClass.NAN_LOSS, again=False)
    assert "failed again" in why_none(POLICY, IncidentClass.JOB_CRASH, again=True)
    assert not why_none(POLICY, IncidentClass.JOB_CRASH, again=False)
    found = by_reason([(3, "late"), (1, "late"), (2, "the code was switched")])
    assert describe(found) == [
        "ranks 1, 3 got a new process: late",
        "rank 2 got a new process: the code was switched",
    ]
    assert describe({"late": range(20)})[0].endswith("15 and 4 more got a new process: late")
