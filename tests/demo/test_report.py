"""The demo's report: figures from ledger facts, JSON and page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.demo import page, report, written_report
from holdfast.demo.chart import ticks
from holdfast.demo.observer import Sample
from holdfast.demo.story import AnsweredFault
from holdfast.models.alert import IncidentClass, IncidentState
from tests.demo.world import KILL_MACHINE, KILL_RANK, action, incident

INJECTED = AnsweredFault(KILL_RANK, "m1", 3, at=1000.0, incident_id="demo-1-1")
INCIDENT = incident(
    1,
    IncidentClass.JOB_CRASH,
    1000.2,
    state=IncidentState.RECOVERED,
    first_task_at=1000.35,
    recovered_at=1002.0,
    flow_run_id="f-1",
)
ACTIONS = [action("pause:e1", 1000.4, 1000.6), action("start:e2", 1000.7, 1001.5)]
LINE = report.incident_line(INCIDENT, ACTIONS, INJECTED)


def a_report(*, ok: bool = True) -> report.DemoReport:
    return report.DemoReport(
        ok=ok,
        bitwise_equal=ok,
        ettr=0.9,
        steps_total=100,
        steps_recomputed=3,
        wall_s=60.0,
        lost_by_phase_s={"undetected": 2.5},
        lost_by_class_s={"job_crash": 2.0, "": 0.5},
        started_at=990.0,
        job="demo-1",
        reference_job="demo-1-reference",
        problems=() if ok else ("<weights> differ",),
        incidents=(report.incident_line(INCIDENT, ACTIONS, INJECTED),),
        timeline=((0.0, 0), (10.0, 50), (12.0, 49), (60.0, 100)),
        prefect_url="http://127.0.0.1:4301",
    )


def test_incident_times_count_from_the_injection() -> None:
    """Detection and recovery from the injection, the first task from the accepted alert."""
    line = report.incident_line(INCIDENT, ACTIONS, INJECTED)
    assert (line.detected_s, line.first_task_s, line.recovered_s) == (0.2, 0.15, 2.0)
    assert [action.key for action in line.actions] == ["pause:e1", "start:e2"]


def test_phases_have_no_gaps() -> None:
    """Every second from the fault to the first new step is in exactly one phase."""
    phases = report.phases(INCIDENT, ACTIONS, 1000.0)
    assert phases == pytest.approx(
        {"undetected": 0.2, "deciding": 0.3, "pausing": 0.2, "restoring": 0.8, "restarting": 0.5}
    )
    assert sum(phases.values()) == pytest.approx(2.0)


def test_phases_of_actions_that_outlive_the_recovery_are_cut() -> None:
    """A report written after the first new step does not count."""
    late = [*ACTIONS, action("report", 1001.9, 1005.0), action("verify:e2", 1003.0, 1004.0)]
    assert sum(report.phases(INCIDENT, late, 1000.0).values()) == pytest.approx(2.0)


def test_json_has_the_promised_fields(tmp_path: Path) -> None:
    """The names that others read."""
    written_report.write(a_report(), tmp_path)
    content = json.loads((tmp_path / "report.json").read_text())
    assert {"ok", "bitwise_equal", "ettr", "steps_total", "steps_recomputed", "incidents"} <= content.keys()
    line = content["incidents"][0]
    promised = {"class", "machine", "injected_at", "detected_s", "first_task_s", "recovered_s", "actions"}
    assert promised | {"flow_run_id"} <= line.keys()
    assert line["class"] == "job_crash"


def test_page_fetches_nothing_and_escapes(tmp_path: Path) -> None:
    """One file: no links to scripts, styles, fonts or pictures; text cannot become markup."""
    html = page.render(a_report(ok=False))
    for outside in ("<script", "<link", "src=", "url(", "@import", "href="):
        assert outside not in html
    assert "&lt;weights&gt; differ" in html
    assert html.count("<svg") == 2
    assert "kill-rank" in html


def test_summary_says_what_is_wrong() -> None:
    """Problems stand in the summary on the terminal too."""
    console = Console(record=True, width=160)
    written_report.summarise(a_report(ok=False), console)
    text = console.export_text()
    assert "<weights> differ" in text
    assert "NOT" in text
    assert "kill-rank" in text


def test_all_good_is_no_problem() -> None:
    """The control: nothing is wrong when nothing is."""
    assert report.problems([INJECTED], 1, [LINE], "done", True) == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"expected": 2}, "only 1 of 2 faults"),
        ({"lines": []}, "kill-rank on m1 was not recovered by job_crash"),
        ({"state": "running"}, "did not finish"),
        ({"bitwise_equal": False}, "weights differ"),
    ],
)
def test_each_problem_is_named(change: dict[str, object], words: str) -> None:
    """Any of them makes the demo fail."""
    facts = {
        "injected": [INJECTED],
        "expected": 1,
        "lines": [LINE],
        "state": "done",
        "bitwise_equal": True,
    }
    found = report.problems(**(facts | change))  # type: ignore[arg-type]
    assert words in " ".join(found)


def test_evicting_another_machine_is_a_problem() -> None:
    """The playbook must find the machine that was hit; what was injected is not taken for what was found."""
    injected = AnsweredFault(KILL_MACHINE, "m1", None, at=1000.0, incident_id="demo-1-1")
    wrong = report.incident_line(INCIDENT, [*ACTIONS, action("evict:m2", 1000.6, 1000.7)], injected)
    assert report.problems([injected], 1, [wrong], "done", True) == (
        "kill-machine hit m1, and the playbook evicted m2",
    )
    right = report.incident_line(INCIDENT, [*ACTIONS, action("evict:m1", 1000.6, 1000.7)], injected)
    assert report.problems([injected], 1, [right], "done", True) == ()


def test_an_open_incident_is_a_problem() -> None:
    """Even one that no fault of ours caused."""
    stray = incident(2, IncidentClass.JOB_HANG, 1010.0)
    found = report.problems([INJECTED], 1, [LINE, report.incident_line(stray, [], None)], "done", True)
    assert found == ("incident demo-1-2 (job_hang) is open",)


def test_timeline_is_relative() -> None:
    """Seconds since the start."""
    assert report.timeline([Sample(1000.0, 3, 1, "running")], 990.0) == ((10.0, 3),)


@pytest.mark.parametrize(("until", "last"), [(100.0, 100.0), (7.0, 7.0), (263.0, 250.0), (0.4, 0.4)])
def test_ticks_are_round(until: float, last: float) -> None:
    """At most nine, from zero."""
    marks = ticks(until)
    assert marks[0] == 0
    assert marks[-1] == pytest.approx(last)
    assert len(marks) <= 9
