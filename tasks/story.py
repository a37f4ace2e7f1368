"""Report of the incident as markdown and as a table of suspects: text only, from the ledger."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

from holdfast.models.alert import Alert, Incident, Verdict
from holdfast.models.history import Action
from holdfast.policies.accounting.lost_time import account
from holdfast.policies.accounting.timeline import incident_phases
from holdfast.policies.restore import kept_processes
from holdfast.shown import plain

_LONGEST = 300
_MOST_EVIDENCE = 100
"""Lines of evidence in a report: Prefect takes no artifact of any size, and a thousand machines have a line each."""


def escape(text: object) -> str:
    """Return data from logs and alerts, made harmless in markdown: one line, no markup, bounded."""
    flat = plain(text, instead=" ", lines=False)[:_LONGEST]
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|!" else c for c in flat)


def markdown(
    incident: Incident,
    actions: Sequence[Action],
    summary: str,
    verdict: Verdict,
    now: float | None = None,
    *,
    page: str = "",
) -> str:
    """Write the incident report: what was seen, considered and done, with times in seconds since the first alert.

    ``now`` (Unix seconds) ends the account of the time that it took; None: there is none. ``page`` is the address of
    the status page, for a link to the incident there.
    """
    zero = incident.detected_at
    lines = [
        f"# {escape(incident.id)}: {escape(incident.incident_class.value)}",
        "",
        f"**{escape(summary)}**",
        "",
        f"- job **{escape(incident.job)}**, epoch {incident.epoch}, attempt {incident.attempt}",
        f"- machine {escape(incident.machine or 'not known')}, confidence {incident.confidence:.0%}",
    ]
    if page:
        lines.append(
            f"- [{escape(incident.id)} on the status page](<{page}#/incidents/{quote(incident.id)}>)"
        )
    lines += [f"- {escape(reason)}" for reason in incident.reasons]
    lines += ["", "## Signals", "", "| after | kind | machine | rank | evidence |", "|--:|---|---|--:|---|"]
    lines += [_signal(alert, zero) for alert in incident.alerts[:20]]
    if len(incident.alerts) > 20:
        lines.append(f"| | and {len(incident.alerts) - 20} more | | | |")
    if verdict.evidence:
        shown, more = verdict.evidence[:_MOST_EVIDENCE], len(verdict.evidence) - _MOST_EVIDENCE
        lines += ["", "## Evidence", "", *(f"- {escape(line)}" for line in shown)]
        lines += [f"- and {more} more"] if more > 0 else []
    lines += _not_kept(actions)
    lines += _restored(actions)
    lines += ["", "## Actions", "", "| after | took | action | result |", "|--:|--:|---|---|"]
    lines += [_action(action, zero) for action in actions]
    if now is not None:
        lines += ["", "## Where the time went", "", "| phase | seconds |", "|---|--:|"]
        lines += [
            f"| {name.replace('_', ' ')} | {value:.2f} |" for name, value in _spent(incident, actions, now)
        ]
    return "\n".join(lines) + "\n"


def _spent(incident: Incident, actions: Sequence[Action], now: float) -> list[tuple[str, float]]:
    since = incident.detected_at
    spent = account(incident_phases(incident, actions, since, now), since, now).by_phase()
    return [*spent.items(), ("from detection until this report", now - since)]


def suspects(incident: Incident, verdict: Verdict) -> list[dict[str, str]]:
    """Return one row per accused machine, with the evidence against it."""
    named = list(dict.fromkeys([*verdict.suspects, *([incident.machine] if incident.machine else [])]))
    return [
        {
            "machine": name,
            "accused by": "diagnosis" if name in verdict.suspects else "root alert",
            "confidence": f"{verdict.confidence if name in verdict.suspects else incident.confidence:.0%}",
            "why": "; ".join(line for line in verdict.evidence if name in line)[:_LONGEST]
            or "; ".join(incident.reasons)[:_LONGEST],
        }
        for name in named
    ]


def _signal(alert: Alert, zero: float) -> str:
    evidence = {key: value for key, value in alert.evidence.items() if value not in (None, "", [], {})}
    rank = "" if alert.rank is None else alert.rank
    return (
        f"| {alert.at - zero:+.2f} s | {alert.kind.value} | {escape(alert.machine or '')} | {rank} "
        f"| {escape(json.dumps(evidence, default=str))} |"
    )


def _not_kept(actions: Sequence[Action]) -> list[str]:
    """Describe the processes that might have been kept when an epoch was stopped, and were ended."""
    lines = [
        line
        for action in actions
        if action.kind == "pause"
        for line in kept_processes.describe((action.result or {}).get("not_kept", {}))
    ]
    return (
        ["", "## Processes that were not kept", "", *(f"- {escape(line)}" for line in lines)] if lines else []
    )


def _restored(actions: Sequence[Action]) -> list[str]:
    """Describe each choice of a state to resume from: newer steps that were skipped, the sources, and why."""
    lines: list[str] = []
    for action in actions:
        result = action.result or {}
        if action.kind != "start" or "epoch" not in result:
            continue
        lines += [
            "",
            f"## Restored in epoch {escape(result['epoch'])}: step {escape(result.get('step'))}",
            "",
        ]
        reasons = [*result.get("reasons", ()), *result.get("restore", ())]
        lines += [f"- {escape(line)}" for line in dict.fromkeys(reasons)]
    return lines


def _action(action: Action, zero: float) -> str:
    took = "" if action.done_at is None else f"{action.done_at - action.begun_at:.2f} s"
    result = json.dumps(action.result, default=str) if action.result else action.state
    return f"| {action.begun_at - zero:+.2f} s | {took} | {escape(action.key)} | {escape(result)} |"
