"""The recorded decisions beside those of a policy, one row each; differences are marked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from holdfast.hindsight import reopening
from holdfast.hindsight.incident_record import Record
from holdfast.hindsight.playbook_run import Replayed
from holdfast.models.alert import Classification, Incident, IncidentState
from holdfast.models.base import Frozen
from holdfast.models.history import Action, ActionState
from holdfast.models.job import WAS_STOPPED
from holdfast.models.wait import Wait
from holdfast.policies.escalate.waits import duration, same_end

_LEFT_OUT = frozenset({"attempt", "wait", "starting"})
"""Actions that are no decisions about the incident: how often it was tried, pauses while S3 is away, signs of life."""
_LONGEST = 300


class Row(Frozen):
    """One decision. Empty text: it was not taken."""

    step: str
    """Such as ``class``, ``rung:e3``, ``evict:m2``, ``ends``."""
    recorded: str
    replayed: str
    same: bool
    reasons: tuple[str, ...] = ()
    """Of the replayed one."""
    recorded_reasons: tuple[str, ...] = ()
    note: str = ""
    """Why the replayed one rests on less than the record of it."""


class Comparison(Frozen):
    """All of an incident."""

    incident: str
    policy: str
    rows: tuple[Row, ...]
    not_recorded: tuple[str, ...] = ()

    @property
    def differences(self) -> tuple[Row, ...]:
        """Rows in which the policy decides otherwise."""
        return tuple(row for row in self.rows if not row.same)


def compare(record: Record, replayed: Replayed, policy: str) -> Comparison:
    """Put them side by side, in the order in which they came."""
    rows = (_opening(record, replayed), *_actions(record, replayed), *_end(record, replayed))
    return Comparison(incident=record.incident.id, policy=policy, rows=rows, not_recorded=tuple(record.lacks))


def _opening(record: Record, replayed: Replayed) -> Row:
    was, found = reopening.recorded(record), replayed.opening.found
    return Row(
        step="class",
        recorded=_class(was),
        replayed=_class(found) if found else replayed.opening.reasons[-1],
        same=found is not None and _class(found) == _class(was),
        reasons=(*replayed.opening.reasons, *(found.reasons if found else ())),
        recorded_reasons=was.reasons,
    )


def _class(found: Classification) -> str:
    where = [found.machine or "", f"rank {found.rank}" if found.rank is not None else ""]
    place = ", ".join(filter(None, where))
    return f"{found.incident_class.value}, {found.confidence:.0%}" + (f", {place}" if place else "")


def _actions(record: Record, replayed: Replayed) -> Iterator[Row]:
    was = [each for each in record.actions if each.kind not in _LEFT_OUT]
    now = [each for each in replayed.actions if each.kind not in _LEFT_OUT and not _of_the_stop(record, each)]
    matcher = SequenceMatcher(None, [each.key for each in was], [each.key for each in now], autojunk=False)
    for _, a, b, c, d in matcher.get_opcodes():
        shared = min(b - a, d - c) if [e.key for e in was[a:b]] == [e.key for e in now[c:d]] else 0
        yield from (
            _row(x, y, replayed) for x, y in zip(was[a : a + shared], now[c : c + shared], strict=True)
        )
        yield from (_row(each, None, replayed) for each in was[a + shared : b])
        yield from (_row(None, each, replayed) for each in now[c + shared : d])


def _of_the_stop(record: Record, action: Action) -> bool:
    """Return whether the replay began this act only to find that the job was stopped before it."""
    failed = action.state is ActionState.FAILED and record.action(action.key) is None
    return failed and record.incident.summary == WAS_STOPPED


def _row(was: Action | None, now: Action | None, replayed: Replayed) -> Row:
    key = (was or now or Action(incident_id="x-1", key="", kind="", begun_at=0.0)).key
    text_was, text_now = (_described(each) if each else "" for each in (was, now))
    return Row(
        step=key,
        recorded=text_was,
        replayed=text_now,
        same=text_was == text_now,
        reasons=_reasons(now),
        recorded_reasons=_reasons(was),
        note=replayed.assumed.get(key, "") if now else "",
    )


def _reasons(action: Action | None) -> tuple[str, ...]:
    return tuple(map(str, action.result.get("reasons", ()))) if action and action.kind == "rung" else ()


def _described(action: Action) -> str:
    if action.state is ActionState.FAILED:
        return str(action.result.get("error", "failed"))[:_LONGEST]
    if action.state is ActionState.INTENT:
        return "begun"
    describe = _DESCRIBE.get(action.kind)
    return (describe(action) if describe else json.dumps(action.result, sort_keys=True, default=str))[
        :_LONGEST
    ]


def _check(action: Action) -> str:
    findings: Sequence[Mapping[str, Any]] = action.result.get("findings", ())
    bad = sorted({f"{each['machine']} ({each['check']})" for each in findings if not each["ok"]})
    return f"against {', '.join(bad)}" if bad else f"{len(findings)} findings, no machine accused"


def _rung(action: Action) -> str:
    data = action.result.get("data")
    return str(action.result["rung"]) + (f"; {data}" if data else "")


def _pause(action: Action) -> str:
    lost = action.result.get("unreachable", ())
    return f"no answer from {', '.join(lost)}" if lost else "all ranks stopped"


def _verdict(action: Action) -> str:
    suspects = ", ".join(action.result.get("suspects", ())) or "nobody"
    return f"accuses {suspects} ({action.result.get('blame', 'nobody')})"


def _approve(action: Action) -> str:
    verb = "approved" if action.result.get("approve") else "refused"
    return f"eviction of {action.intent.get('target', '')}: {verb} by {action.result.get('by') or 'an unnamed person'}"


_DESCRIBE: Mapping[str, Callable[[Action], str]] = {
    "rung": _rung,
    "check": _check,
    "pause": _pause,
    "first": lambda action: action.result.get("diagnosed_first") or "restarted before the diagnosis",
    "stacks": _verdict,
    "vote": _verdict,
    "replay": _verdict,
    "approve": _approve,
    "evict": lambda action: f"evicted for the {action.result.get('scope')}: {action.result.get('reason')}",
    "swap": lambda action: f"{action.result.get('to')} in its place",
    "shrink": lambda action: f"{action.result.get('to')} machines go on, of {action.result.get('from')}",
    "resize": lambda action: f"{action.result.get('to')} machines instead of {action.result.get('from')}",
    "rollback": lambda action: f"{action.result.get('from')} to {action.result.get('to')}",
    "start": lambda action: f"epoch {action.result.get('epoch')} from step {action.result.get('step')}",
    "verify": lambda action: (
        action.result.get("refused") or f"epoch {action.result.get('epoch')} makes steps"
    ),
    "again": lambda action: str(action.result.get("why")),
    "replenish": lambda action: f"{len(action.result.get('provisioned', ()))} machines asked for",
}


def _end(record: Record, replayed: Replayed) -> Iterator[Row]:
    if replayed.incident is None:
        return
    was, now = record.incident, replayed.incident
    if was.state is IncidentState.OPEN:
        yield Row(step="ends", recorded="still open", replayed=_ended(now, replayed), same=False)
        return
    # Another incident came first: the replay, which does not know of it, comes as far and no further.
    cut_off = was.state is IncidentState.DISMISSED and now.state is IncidentState.OPEN
    same = cut_off or (was.state is now.state and same_end(was.summary, now.summary))
    yield Row(step="ends", recorded=_ended(was), replayed=_ended(now, replayed), same=same)
    before, after = _wait(record.wait), _wait(replayed.wait)
    if before or after:
        yield Row(step="waits", recorded=before, replayed=after, same=before == after)


def _ended(incident: Incident, replayed: Replayed | None = None) -> str:
    if incident.state is IncidentState.OPEN and replayed is not None:
        return f"given up: {replayed.error}"
    return f"{incident.state.value}: {incident.summary}"


def _wait(wait: Wait | None) -> str:
    if wait is None:
        return ""
    meanwhile = "the job runs on" if wait.runs_on else "the job stands"
    return (
        f"for {wait.missing.value}, the {wait.times}. time; next attempt after "
        f"{duration(wait.next_at - wait.since)}; {meanwhile}"
    )
