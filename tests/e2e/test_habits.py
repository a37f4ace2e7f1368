"""Conditions that once ended healthy jobs or cost healthy machines, with real processes: deaths, habits, late roots."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.models.alert import IncidentClass
from holdfast.models.job import JobState
from tests.e2e.pace import Paced
from tests.e2e.site import Site
from tests.e2e.waiting import wait_for

pytestmark = pytest.mark.thorough

EVALUATES = """\
        time.sleep(0.1)
        if step % 40 == 0:
            until = time.monotonic() + 20
            while dist.get_rank() == 0 and time.monotonic() < until:
                torch.randn(200, 200) @ torch.randn(200, 200)
"""
"""Rank 0 evaluates for two hundred steps' time, and declares nothing; the others wait for it."""


def test_independent_kills_steps_apart_are_each_retried(site: Site, name: str) -> None:
    """Four deaths of different ranks a few steps apart: four restarts in place, no older code, no person."""
    job = site.submit(name, every_step=True, ranks_per_machine=2)
    for number, rank in enumerate((3, 0, 2, 1), start=1):
        site.fault("kill-rank", job.machines[rank // 2], rank)
        incident = site.wait_recovered(name, number)
        assert (incident.incident_class, incident.rank) == (IncidentClass.JOB_CRASH, rank), site.describe(
            name
        )
        assert site.job(name).machines == job.machines, site.describe(name)
        site.wait_more_steps(name, 4)
    assert site.job(name).state is JobState.RUNNING
    assert {epoch.code_version for epoch in site.epochs(name)} == {job.code_version}
    assert site.evicted() == set()


def test_an_undeclared_evaluation_is_no_hang(site: Site, name: str, tmp_path: Path) -> None:
    """One rank computes for 20 s between steps of 0.1 s, again and again, while the other waits."""
    paced = Paced(tmp_path, EVALUATES)
    site.submit(name, code_dir=paced.code, first=10)
    site.wait_step(name, 85, 240)
    assert site.ledger.incidents(job=name) == [], site.describe(name)


def test_a_root_that_joins_late_takes_the_machine_with_it(site: Site, name: str) -> None:
    """An Xid 79 after the crash that it caused: it is evicted before the job starts again, not after one more fault."""
    before = site.submit(name).machines
    site.fault("kill-rank", before[1])
    wait_for(lambda: f"an incident: {site.describe(name)}", lambda: site.incident(name))
    site.fault("xid-79", before[1])
    site.wait_recovered(name)
    assert len(site.ledger.incidents(job=name)) == 1, site.describe(name)
    assert site.evicted() == {before[1]}, site.describe(name)
    assert [before[1] in epoch.machines for epoch in site.epochs(name)] == [True, False]
