"""Hangs under NCCL that people reported: never an innocent, and the culprit where the report has all ranks."""

from __future__ import annotations

import pytest

from holdfast.agent.diagnostics import flight as reader
from holdfast.agent.diagnostics.flight_summary import summarise
from holdfast.models.job import Job, JobSpec, JobState
from holdfast.policies.diagnose import flight
from holdfast.policies.diagnose.flight import FlightVerdict
from tests.flight.reported import Report, reports

REPORTS = reports()
PROGRAM = {"tutorial-one-more": (), "sizes-differ": (22, 110), "rccl-another-operation": (2,)}
"""Ranks that issued something else, where one can say who."""


def job(report: Report) -> Job:
    machines = report.world // report.per
    return Job(
        spec=JobSpec(name="gpt", script="t.py", machines=machines, ranks_per_machine=report.per),
        state=JobState.RUNNING,
        epoch=1,
        code_version="v1",
        machines=tuple(f"m{slot}" for slot in range(machines)),
        submitted_at=0.0,
    )


def judged(report: Report) -> FlightVerdict:
    """Through the reader of the watchdog's dumps."""
    dumps = report.dumps().items()
    records = [record for rank, content in dumps for record in summarise(rank, reader.load(content))]
    return flight.analyse(records, job(report))


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.id)
def test_no_innocent_machine_is_accused(report: Report) -> None:
    """The culprit's or none, however many ranks the report leaves out."""
    assert set(judged(report).suspects) <= {f"m{rank // report.per}" for rank in report.culprit}


@pytest.mark.parametrize(
    "report", [each for each in REPORTS if len(each.each()) == each.world], ids=lambda report: report.id
)
def test_the_culprit_is_named_where_the_report_has_all_ranks(report: Report) -> None:
    """As who is behind; of two ranks, as in two of these, no machine is accused for it."""
    found = judged(report)
    assert found.behind == (report.culprit or report.behind), found
    if report.id in PROGRAM:
        assert found.disagree == PROGRAM[report.id], found
        assert any("look at the code" in reason for reason in found.reasons)


def test_more_than_half_of_the_reports_are_held_out() -> None:
    """They were labelled first, and then run."""
    assert sum(report.held_out for report in REPORTS) * 2 > len(REPORTS)
    assert all(report.source for report in REPORTS)
