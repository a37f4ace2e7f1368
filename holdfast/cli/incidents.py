"""``incidents`` and ``incident``: what happened, what was done and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from holdfast import names
from holdfast.cli import context
from holdfast.cli.arguments import IncidentName, checked
from holdfast.cli.output import AsJson, ago, at, print_json, print_table, say, say_aside, seconds, state
from holdfast.client.gateway import understood
from holdfast.errors import SettingsError
from holdfast.models.alert import MOST_LISTED, Incident, IncidentState


def incidents(  # noqa: PLR0917  (options of a command)
    job: Annotated[str | None, typer.Option(help="Only of this job.", callback=checked(names.JOB))] = None,
    state_: Annotated[IncidentState | None, typer.Option("--state", help="Only in this state.")] = None,
    class_: Annotated[str | None, typer.Option("--class", help="Only of this incident class.")] = None,
    machine: Annotated[
        str | None, typer.Option(help="Only those that name this machine.", callback=checked(names.MACHINE))
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=MOST_LISTED, help=f"The newest so many, at most {MOST_LISTED:,}.")
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """List incidents, newest first."""
    with context.gateway() as gateway:
        asked = state_.value if state_ else None
        try:
            found = gateway.incidents(job, asked, limit, incident_class=class_, machine=machine)
        except SettingsError as error:
            raise _of_option(error) from None
    if len(found) == limit:
        say_aside(f"only the newest {limit} are listed (`--limit`)")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            row.id,
            row.incident_class.value,
            state(row.state.value),
            row.machine,
            ago(row.opened_at),
            _took(row),
            row.summary,
        )
        for row in found
    ]
    print_table("Incidents", ("ID", "CLASS", "STATE", "MACHINE", "OPENED", "TOOK", "SUMMARY"), rows, "none")


def _of_option(error: SettingsError) -> Exception:
    """Return the gateway's refusal of a class as wrong usage: it alone knows the classes of all packages."""
    field, _, why = str(error).partition(": ")
    return (
        typer.BadParameter(f"{field.partition(' = ')[2]}: {why}", param_hint="'--class'")
        if field.startswith("query.class = ")
        else error
    )


def incident(
    incident_id: IncidentName,
    as_json: AsJson = False,
) -> None:
    """Show one incident: signals, reasons, every action with its time and result."""
    with context.gateway() as gateway:
        facts = gateway.incident(incident_id)
    if as_json:
        print_json(facts)
        return
    row = understood(Incident, facts["incident"])
    say(f"{row.id}  {row.incident_class.value}  {row.state.value}")
    for label, text in (
        ("job", f"{row.job}, epoch {row.epoch}, attempt {row.attempt}"),
        ("machine", row.machine),
        ("rank", row.rank),
        ("took", _took(row)),
        ("flow run", row.flow_run_id),
        ("summary", row.summary),
        ("asks", (facts.get("ask") or {}).get("question")),
        ("again at", _next_attempt(facts)),
    ):
        if text not in (None, ""):
            say(f"  {label:9} {text}")
    for reason in row.reasons:
        say(f"  because   {reason}")
    _alerts(facts)
    _actions(facts, row.opened_at)
    _repairs(facts, row.opened_at)


def _next_attempt(facts: Mapping[str, Any]) -> str:
    """Return when an incident that waits is tried again, and what it misses."""
    wait = facts.get("wait")
    if not wait:
        return ""
    return f"{at(wait['next_at'])} at the latest; missing: {wait['missing']}"


def _alerts(facts: Mapping[str, Any]) -> None:
    rows = []
    for record in facts.get("alerts", ()):
        alert = record.get("alert", record)
        rows.append(
            (
                alert.get("kind"),
                alert.get("machine"),
                alert.get("rank"),
                record.get("outcome", ""),
                _brief(alert),
            )
        )
    print_table("Alerts", ("KIND", "MACHINE", "RANK", "OUTCOME", "EVIDENCE"), rows, "none")


def _actions(facts: Mapping[str, Any], opened_at: float) -> None:
    rows = [
        (
            f"+{action['begun_at'] - opened_at:.2f} s",
            action["key"],
            action["state"],
            seconds(duration(action)),
            _short(action.get("result") or action.get("intent") or ""),
        )
        for action in facts.get("actions", ())
    ]
    print_table("Actions", ("AT", "ACTION", "STATE", "TOOK", "RESULT"), rows, "none")


def _repairs(facts: Mapping[str, Any], opened_at: float) -> None:
    for repair in facts.get("repairs", ()):
        rows = [
            (
                f"+{step['begun_at'] - opened_at:.2f} s",
                step["step"],
                step["state"],
                seconds(duration(step)),
                _short(step["said"]),
            )
            for step in repair["steps"]
        ]
        title = f"Repair of {repair['machine']} ({repair['why']}): {repair['state']}"
        print_table(title, ("AT", "STEP", "STATE", "TOOK", "RESULT"), rows, "nothing yet")


def duration(action: Mapping[str, Any]) -> float | None:
    """Return the seconds that an action took; None while it runs."""
    return action["done_at"] - action["begun_at"] if action.get("done_at") else None


def _took(row: Incident) -> str:
    return seconds(row.recovered_at - row.detected_at) if row.recovered_at else ""


def _brief(alert: Mapping[str, Any]) -> str:
    evidence = dict(alert.get("evidence") or {})
    for noisy in ("traceback", "log_tail"):
        evidence.pop(noisy, None)
    return _short(", ".join(f"{key}={value}" for key, value in evidence.items()))


def _short(value: object, limit: int = 160) -> str:
    text = str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
