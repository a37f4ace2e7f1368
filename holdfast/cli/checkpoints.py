"""``checkpoints``: what lies in S3 for a job."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import context
from holdfast.cli.output import AsJson, ago, print_json, print_table


def checkpoints(
    job: Annotated[str, typer.Argument(help="As `holdfast status` lists it.")], as_json: AsJson = False
) -> None:
    """List a job's checkpoints in S3, newest first; suspect ones are marked, not deleted."""
    with context.gateway() as gateway:
        found = gateway.checkpoints(job)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            row.step,
            row.epoch,
            row.world_size,
            f"{row.nbytes / 1e6:.1f} MB",
            ago(row.saved_at),
            row.key,
            row.suspect_reason,
        )
        for row in found
    ]
    print_table(
        "Checkpoints", ("STEP", "EPOCH", "RANKS", "SIZE", "SAVED", "KEY", "SUSPECT BECAUSE"), rows, "none yet"
    )
