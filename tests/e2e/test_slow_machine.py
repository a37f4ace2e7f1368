"""A machine that gets less processor time than the others: found by the pace of its ranks, and replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.errors import UnavailableError
from holdfast.inject import cgroup
from holdfast.inject.lasting import lasting
from holdfast.models.alert import AlertKind, IncidentClass
from tests.e2e.site import Site
from tests.e2e.waiting import wait_for

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(os.geteuid() != 0, reason="control groups take root"),
]
SCRIPT = """\
import time
import torch, torch.distributed as dist
import holdfast

torch.set_num_threads(1)
dist.init_process_group("gloo")
session = holdfast.Session()
model = torch.nn.Linear(8, 8)
start = session.restore({"model": model})
left = torch.ones(256, 256)

for step in range(start + 1, 100_000):
    with session.phase("forward"):
        for _ in range(60):
            left @ left
    dist.all_reduce(model(torch.ones(8)).detach())
    time.sleep(0.1)
    session.step(step, loss=1.0)
    session.checkpoint({"model": model})
"""


@pytest.fixture(autouse=True)
def quota() -> None:
    try:
        cgroup.parent_of("cpu")
    except UnavailableError as error:
        pytest.skip(str(error))


def test_a_machine_with_less_than_half_of_its_processor_time_is_replaced(
    site: Site, name: str, tmp_path: Path
) -> None:
    """All wait for it, and no rank fails. Its rank is slow in the phase that computes, five looks in a row."""
    (tmp_path / "train.py").write_text(SCRIPT)
    machines = site.submit(name, machines=4, code_dir=tmp_path, script="train.py").machines
    site.wait_more_steps(name, 20)
    with lasting(site.home, "slow-machine", machines[2], percent=60):
        wait_for(
            lambda: f"a straggler is reported: {site.describe(name)}",
            lambda: AlertKind.STRAGGLER in {alert.kind for alert in site.ledger.alerts_of(machines[2])},
            150,
        )
        incident = site.wait_recovered(name)
    assert incident.incident_class is IncidentClass.FAIL_SLOW, site.describe(name)
    assert site.evicted() == {machines[2]}, site.describe(name)
    assert {*machines} - {machines[2]} < {*site.job(name).machines}
    site.wait_more_steps(name)


@pytest.mark.parametrize("percent", [30, 10])
def test_a_machine_with_little_less_processor_time_than_it_used_goes_when_it_is_slow_again(
    site: Site, name: str, tmp_path: Path, percent: float
) -> None:
    """Its rank computes in bursts: a quota of little less than their mean makes each several times as long.

    Its stacks stand out in fewer looks, so that the vote may not name it: then the job is retried in place, once.
    """
    (tmp_path / "train.py").write_text(SCRIPT)
    machines = site.submit(name, machines=4, code_dir=tmp_path, script="train.py").machines
    site.wait_more_steps(name, 20)
    with lasting(site.home, "slow-machine", machines[2], percent=percent):
        wait_for(
            lambda: f"the slow machine is evicted: {site.describe(name)}",
            lambda: site.evicted() == {machines[2]},
            400,
        )
        newest = site.ledger.incidents(name, limit=1)[0]
        incident = site.wait_recovered(name, int(newest.id.rpartition("-")[2]))
    assert incident.incident_class is IncidentClass.FAIL_SLOW, site.describe(name)
    assert incident.machine == machines[2]
    assert {*machines} - {machines[2]} < {*site.job(name).machines}
