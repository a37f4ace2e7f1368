"""``ledger``: the schema of the ledger's database."""

from __future__ import annotations

import typer

from holdfast.cli import context
from holdfast.cli.output import AsJson, print_json, report, say

app = typer.Typer(help="The ledger's database and its schema.", no_args_is_help=True)


@app.command()
def upgrade(as_json: AsJson = False) -> None:
    """Make the ledger's tables, or bring them up to date. `holdfast up` and the gateway do this too."""
    from holdfast.storage.ledger import Ledger  # noqa: PLC0415  (needs the control plane)

    ledger = Ledger(context.settings().database)
    before, after = ledger.create()
    ledger.close()
    line = f"ledger has schema {after}" + (
        " already" if before == after else f" (before: {before or 'none'})"
    )
    report(as_json, line, schema=after, before=before)


@app.command()
def version(as_json: AsJson = False) -> None:
    """Which schema the ledger has, and which this Holdfast needs."""
    from holdfast.storage.ledger import Ledger  # noqa: PLC0415
    from holdfast.storage.ledger.schema import HEAD  # noqa: PLC0415

    ledger = Ledger(context.settings().database)
    found = ledger.revision()
    ledger.close()
    if as_json:
        print_json({"ledger": found, "holdfast": HEAD})
        return
    say(f"ledger: {found or 'no schema yet'}; this Holdfast: {HEAD}")
