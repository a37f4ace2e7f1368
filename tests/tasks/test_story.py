"""The incident report is text from untrusted places: complete, bounded, and harmless."""

from __future__ import annotations

from holdfast.models.alert import Alert, AlertKind, Incident, IncidentClass, IncidentState, Verdict
from holdfast.models.history import Action, ActionState
from holdfast.tasks.story import escape, markdown, suspects


def incident(**changes: object) -> Incident:
    fields: dict[str, object] = {
        "id": "gpt-1",
        "job": "gpt",
        "incident_class": IncidentClass.JOB_CRASH,
        "state": IncidentState.OPEN,
        "epoch": 3,
        "machine": "m1",
        "detected_at": 100.0,
        "opened_at": 100.0,
        "reasons": ("rank 2 was killed",),
    }
    return Incident.model_validate(fields | changes)


def test_hostile_log_text_stays_text() -> None:
    """Markup and control characters of a log line do nothing in the report."""
    assert escape("a|b\n<img src=x>\x1b[31m`c`") == "a\\|b \\<img src=x\\> \\[31m\\`c\\`"
    assert len(escape("x" * 10_000)) == 300


def test_the_report_has_signals_evidence_and_actions() -> None:
    """The signals, the evidence against each machine, the actions and their times."""
    alert = Alert(
        kind=AlertKind.RANK_EXIT, job="gpt", machine="m1", rank=2, at=99.5, evidence={"signal": "SIGKILL"}
    )
    action = Action(
        incident_id="gpt-1",
        key="evict:m1",
        kind="evict",
        state=ActionState.DONE,
        result={"reason": "broken"},
        begun_at=101.0,
        done_at=101.25,
    )
    text = markdown(
        incident(alerts=(alert,)),
        [action],
        "evicted m1",
        Verdict(suspects=("m1",), evidence=("m1 is odd",)),
        102.0,
        page="http://[::1]:4300/ui/",
    )
    assert "**evicted m1**" in text
    assert "- [gpt-1 on the status page](<http://[::1]:4300/ui/#/incidents/gpt-1>)" in text
    assert "| -0.50 s | rank_exit | m1 | 2 |" in text
    assert "SIGKILL" in text
    assert "- m1 is odd" in text
    assert "| +1.00 s | 0.25 s | evict:m1 |" in text
    assert "| deciding | 1.75 |" in text
    assert "| swapping | 0.25 |" in text
    assert "| from detection until this report | 2.00 |" in text


def test_an_alert_storm_makes_a_bounded_report() -> None:
    """Twenty signals are listed, the rest counted."""
    storm = tuple(Alert(kind=AlertKind.RANK_EXIT, job="gpt", rank=i, at=100.0) for i in range(200))
    assert "and 180 more" in markdown(incident(alerts=storm), [], "", Verdict())


def test_evidence_against_a_thousand_machines_makes_a_bounded_report() -> None:
    """The first hundred lines are listed, the rest counted."""
    lines = tuple(f"inspect on m{number}: bad" for number in range(1200))
    text = markdown(incident(), [], "", Verdict(evidence=lines))
    assert "- inspect on m99: bad\n- and 1100 more\n" in text
    assert "m100:" not in text


def test_suspects_name_their_accuser() -> None:
    """Distinguish the root alert's machine from the diagnosis'."""
    rows = suspects(incident(), Verdict(suspects=("m3",), confidence=0.8, evidence=("check on m3: bad",)))
    assert [(row["machine"], row["accused by"]) for row in rows] == [
        ("m3", "diagnosis"),
        ("m1", "root alert"),
    ]
    assert rows[0]["why"] == "check on m3: bad"


def test_the_report_says_what_was_restored_and_why() -> None:
    """Each attempt with its skipped steps and its sources; a reason is shown once."""
    start = Action(
        incident_id="gpt-1",
        key="start:after-e3",
        kind="start",
        state=ActionState.DONE,
        result={
            "epoch": 4,
            "step": 8,
            "reasons": ["refused: rank 1", "step 9 of epoch 3 skipped: lacks rank 1"],
            "restore": ["step 9 of epoch 3 skipped: lacks rank 1", "rank 0, 1 from peer: m1"],
        },
        begun_at=101.0,
        done_at=102.0,
    )
    text = markdown(incident(), [start], "restarted", Verdict())
    assert "## Restored in epoch 4: step 8" in text
    assert "- refused: rank 1" in text
    assert "- rank 0, 1 from peer: m1" in text
    assert text.count("- step 9 of epoch 3 skipped") == 1
