"""Runs an item through the whole path that production takes, and lists the errors of the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.agent.inspection import dcgm
from holdfast.agent.inspection.kernel_log import KernelLog
from holdfast.agent.inspection.kmsg import lines_of
from holdfast.agent.ranks import exits
from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass
from holdfast.policies.classify import dcgm_diag
from holdfast.policies.classify.decision import JobContext, TooEarly
from holdfast.policies.classify.incident_class import classify, sure_machines
from holdfast.policies.config.policy import Policy
from holdfast.policies.diagnose.verdicts import judge as judge_findings
from holdfast.policies.pool import rank_deaths
from tests.corpus import tools
from tests.corpus.items import ECHO, NOTHING, TOOLS, Item, Kind
from tests.policies.make import NOW, job

POLICY = Policy.load()
JOB = job(machines=4, per=2)
MACHINE = "m1"
RANK = 2
_WITHOUT_CAUSE = {
    "exit_code": 1,
    "error_type": "RuntimeError",
    "message": "it failed",
    "user_frame": "train.py:9 in step",
}


@dataclass(frozen=True)
class Answer:
    """The classification of an item."""

    found_class: str
    """A class, ``echo`` or ``nothing``."""
    beside: str = ""
    accused: tuple[str, ...] = ()
    """Machines that would be evicted for it at once."""
    alerts: tuple[str, ...] = ()
    tested: bool = True
    counts: bool | None = None


@dataclass(frozen=True)
class Score:
    """One item judged."""

    item: Item
    answer: Answer
    right: bool
    accuses_wrongly: bool
    """A machine is evicted at once, or code is blamed, that the label does not accuse."""


def score(item: Item, folder: Path) -> Score:
    """Run and judge one item."""
    found = answer(item, folder)
    beside = item.beside or (item.expect if item.expect != NOTHING else IncidentClass.JOB_CRASH.value)
    right = found.found_class == item.expect
    right &= item.counts is None or found.counts is item.counts
    if item.kind is Kind.KERNEL or item.kind in TOOLS:
        right &= found.beside == beside
    if item.kind in TOOLS:
        right &= (found.tested, sorted(found.alerts)) == (item.tested, sorted(item.alerts))
    blamed = {found.found_class, found.beside}
    allowed = {item.expect, beside}
    machine = IncidentClass.MACHINE_FAULT.value
    wrong = bool(found.accused) and machine not in allowed
    wrong |= bool(found.counts) and item.counts is False
    wrong |= any(label in blamed - allowed for label in (machine, IncidentClass.USER_CODE_ERROR.value))
    return Score(item=item, answer=found, right=right, accuses_wrongly=wrong)


def answer(item: Item, folder: Path) -> Answer:
    """Classify the item as production does."""
    if item.kind is Kind.DCGM_DIAG:
        output = dcgm_diag.json_in(item.text)
        verdict = judge_findings(dcgm_diag.judge(MACHINE, output) if output is not None else [])
        return Answer(
            IncidentClass.MACHINE_FAULT.value if verdict.suspects else NOTHING, accused=verdict.suspects
        )
    if item.kind is Kind.EXIT:
        ended = _exit(item)
        died = rank_deaths.death(ended, NOW, None, POLICY.classify)
        return replace(_of(ended), counts=died is not None and not died.raised)
    if item.kind in TOOLS:
        alerts, tested = tools.read(item, folder)
        named = tuple(f"{alert.kind} {alert.evidence['device']}" for alert in alerts)
        return replace(_both(alerts), alerts=named, tested=tested)
    return _both(_health(item.text) if item.kind is Kind.DCGM_HEALTH else _kernel(item.text, folder))


def changed(items: Iterable[Item], rewrite: Callable[[str], str], folder: Path) -> dict[str, str]:
    """Return the ends of ranks on which the verdict is another one when their text is rewritten, and both verdicts."""
    found = {}
    for item in items:
        plain, after = (
            answer(each, folder) for each in (item, item.model_copy(update={"text": rewrite(item.text)}))
        )
        if (plain.found_class, plain.counts) != (after.found_class, after.counts):
            found[item.id] = f"{plain.found_class} {plain.counts}: {after.found_class} {after.counts}"
    return found


def _both(alerts: list[Alert]) -> Answer:
    """By themselves, and beside an exit that names no cause."""
    alone = _of(*alerts)
    ended = Alert(
        kind=AlertKind.RANK_EXIT,
        job="gpt",
        epoch=3,
        machine=MACHINE,
        rank=RANK,
        at=NOW,
        evidence=_WITHOUT_CAUSE,
    )
    return Answer(alone.found_class, beside=_of(*alerts, ended).found_class, accused=alone.accused)


def _of(*alerts: Alert) -> Answer:
    context = JobContext(job=JOB, now=NOW)
    found = classify(alerts, context, POLICY)
    accused = sure_machines(alerts, context, POLICY)
    if isinstance(found, Classification):
        return Answer(found.incident_class.value, accused=accused)
    return Answer(ECHO if isinstance(found, TooEarly) else NOTHING, accused=accused)


def _exit(item: Item) -> Alert:
    """As the agent makes it: of the last words that the rank sent, or of its log."""
    error = dict(item.error)
    module = str(error.pop("module", ""))
    if error:
        last = f"{module + '.' if module else ''}{error['error_type']}: {error.get('message', '')}"
        error = {"at": NOW, "traceback": f"Traceback (most recent call last):\n{last}", **error}
    evidence: dict[str, Any] = exits.evidence(item.exit_code, error or None, item.text, item.code)
    return Alert(
        kind=AlertKind.RANK_EXIT, job="gpt", epoch=3, machine=MACHINE, rank=RANK, at=NOW, evidence=evidence
    )


def _kernel(text: str, folder: Path) -> list[Alert]:
    """Through a file that is followed; and through the ring buffer's records, which must say the same."""
    path = folder / "kern.log"
    path.write_text("")
    log = KernelLog(MACHINE, path, POLICY.detect.intervals, clock=lambda: NOW)
    path.write_text(text if text.endswith("\n") else f"{text}\n")
    alerts = log.poll()
    record = b"6,1,1,-;" + text.strip().replace("\n", "\\x0a").encode()
    assert [line.strip() for line in lines_of(record)] == [
        line.strip() for line in text.splitlines() if line.strip()
    ]
    return alerts


def _health(text: str) -> list[Alert]:
    return [
        Alert(
            kind=sign.kind,
            machine=MACHINE,
            at=NOW,
            evidence={**sign.evidence, "device": sign.device, "detail": sign.detail},
        )
        for sign in dcgm.signs(text)
        if not sign.ok
    ]
