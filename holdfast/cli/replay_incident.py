"""``replay-incident``: what this or another policy would have decided about an incident of the past."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from holdfast.cli import context
from holdfast.cli.arguments import IncidentName
from holdfast.cli.output import AsJson, print_json, print_table, say
from holdfast.errors import UnknownError
from holdfast.settings import Settings

if TYPE_CHECKING:
    from holdfast.hindsight.compare import Comparison, Row
    from holdfast.policies.config.policy import Policy
    from holdfast.storage.ledger import Ledger

PolicyFile = Annotated[
    Path | None, typer.Option("--policy", help="Policy file to judge; without it the site's present one.")
]


def replay_incident(incident_id: IncidentName, policy: PolicyFile = None, as_json: AsJson = False) -> None:
    """Show what this or another policy would have decided about a recorded incident; touches nothing."""
    settings = context.settings()
    file = policy or settings.policy_file
    found = _replayed(settings, incident_id, file)
    if as_json:
        print_json(found.model_dump(mode="json") | {"differences": len(found.differences)})
        return
    _show(found)


def _replayed(settings: Settings, incident_id: str, file: Path | None) -> Comparison:
    from holdfast.hindsight.compare import compare  # noqa: PLC0415  (needs the control plane)
    from holdfast.hindsight.incident_record import Record  # noqa: PLC0415
    from holdfast.hindsight.playbook_run import replay  # noqa: PLC0415
    from holdfast.plugins.policy import site_policy  # noqa: PLC0415

    rules: Policy = site_policy(file)
    ledger = _ledger(settings)
    try:
        record = Record.read(ledger, incident_id)
        replayed = asyncio.run(replay(record, ledger, rules, settings))
    finally:
        ledger.close()
    return compare(record, replayed, str(file or "the packaged policy"))


def _ledger(settings: Settings) -> Ledger:
    """Return the site's, which is only read.

    Raises:
        UnknownError: there is none yet.
    """
    from sqlalchemy import make_url  # noqa: PLC0415

    from holdfast.storage.ledger import Ledger  # noqa: PLC0415

    url = make_url(settings.database)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        raise UnknownError(f"no ledger at {url.database}: this site has no incidents yet")
    return Ledger(settings.database)


def _show(found: Comparison) -> None:
    rows = [_line(row) for row in found.rows]
    print_table(
        f"{found.incident} by {found.policy}", ("", "STEP", "RECORDED", "REPLAYED", "WHY"), rows, "nothing"
    )
    for lack in found.not_recorded:
        say(f"not recorded: {lack}")
    count = len(found.differences)
    say(f"{count} of {len(found.rows)} decisions differ." if count else "The same decisions.")


def _line(row: Row) -> tuple[object, ...]:
    why = "; ".join(filter(None, (*row.reasons, row.note)))
    if row.same:
        return "", row.step, row.recorded, "same", why
    style = "yellow"
    return Text("≠", style=style), row.step, row.recorded or "-", Text(row.replayed or "-", style=style), why
