"""The table of lost time in ``status``: short, whatever happened."""

from __future__ import annotations

from holdfast.models.job import JobSpec, JobState
from tests.cli.conftest import Cli
from tests.cli.fake_gateway import FakeGateway

SPEC = JobSpec(name="gpt", script="t.py", machines=1, ranks_per_machine=1)


def test_status_lists_what_most_time_was_lost_to(cli: Cli, gateway: FakeGateway) -> None:
    """A few lines of each job: what is open stands below them."""
    gateway.add_job(SPEC)
    gateway.lost_to = [f"cause_{number}" for number in range(8)]
    out = cli("status").out
    assert [name for name in gateway.lost_to if name in out] == [f"cause_{number}" for number in range(3, 8)]
    assert "and 3 smaller parts of lost time" in out


def test_status_lists_no_lost_time_of_a_job_that_has_ended(cli: Cli, gateway: FakeGateway) -> None:
    """Its line has the most of it, and ``--json`` all."""
    gateway.add_job(SPEC, JobState.STOPPED)
    out = cli("status").out
    assert "Lost time" not in out
    assert "undetected 90 s" in out
    assert "job_hang" in cli("status", "--json").out
