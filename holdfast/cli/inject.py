"""``inject``: break something on purpose."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast import names
from holdfast.cli import context
from holdfast.cli.arguments import checked
from holdfast.cli.output import AsJson, tell


def inject(
    fault: Annotated[
        str,
        typer.Argument(
            help="kill-rank, kill-machine, kill-agent, hang-rank, xid-79, bad-matmul, wrong-bits, nan, code-bug."
        ),
    ],
    machine: Annotated[
        str,
        typer.Option(help="Where, as `holdfast machines` lists it.", callback=checked(names.MACHINE)),
    ],
    rank: Annotated[
        int | None, typer.Option(min=0, help="Which rank (default: the machine's first).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Inject a real fault underneath a running job (demo, tests, game days)."""
    home = context.settings().home
    from holdfast.inject import inject as do  # noqa: PLC0415  (boto3 and psutil: other commands need neither)

    done = do(home, fault, machine, rank)
    where = done.machine if done.rank is None else f"{done.machine}, rank {done.rank}"
    line = f"{done.fault} injected on {where}. Watch it with `holdfast status` and `holdfast incidents`."
    tell(as_json, line, fault=done.fault, machine=done.machine, rank=done.rank)
