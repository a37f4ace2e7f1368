"""``doctor``: is everything here that Holdfast needs, and if not, what to do."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from holdfast import names
from holdfast.cli import checks
from holdfast.cli.arguments import checked
from holdfast.cli.output import AsJson, out, print_json
from holdfast.shown import plain

JobName = Annotated[
    str | None,
    typer.Argument(
        help="Prove what this job has saved, instead of checking the site.", callback=checked(names.JOB)
    ),
]


def doctor(job: JobName = None, as_json: AsJson = False) -> None:
    """Check everything that a new site gets wrong, and explain how to fix it. Status 1 when something is wrong.

    With JOB: prove now that the newest shards of its ranks, their copies and its newest checkpoint in S3 restore.
    """
    if job is not None:
        from holdfast.cli import restorable  # noqa: PLC0415  (asks agents: more than the checks load)

        restorable.show(job, as_json)
        return
    results = checks.run_all()
    if as_json:
        print_json(results)
    else:
        for result in results:
            mark = Text("ok   ", style="green") if result.ok else Text("WRONG", style="bold red")
            line = Text.assemble(mark, plain(f"  {result.name:16} {result.found}"))
            if result.advice:
                line.append(plain(f"\n{'':24}{result.advice}"), style="yellow")
            out.print(line, soft_wrap=True)
    if not all(result.ok for result in results):
        raise typer.Exit(1)
