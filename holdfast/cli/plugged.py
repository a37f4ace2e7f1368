"""``plugins``: what other packages bring here."""

from __future__ import annotations

import typer

from holdfast import plugins as seam
from holdfast.cli.output import AsJson, print_json, print_table


def plugins(as_json: AsJson = False) -> None:
    """List plug-ins of other packages, from detectors to playbooks. Status 1 when one is broken."""
    rows = []
    for group in seam.EntryPoints:
        broken = {(each.name, each.package): each for each in seam.load(group)[1]}
        for found in seam.installed(group):
            plugin = found.plugin
            rows.append(broken.get((plugin.name, plugin.package), plugin))
    if as_json:
        print_json(rows)
    else:
        cells = [
            (row.group.value, row.name, f"{row.package} {row.version}", row.error or "ok") for row in rows
        ]
        print_table("Plug-ins", ("group", "name", "package", "state"), cells, "none is installed")
    if any(row.error for row in rows):
        raise typer.Exit(1)
