"""``inject``: break something on purpose."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from holdfast import names
from holdfast.cli import context
from holdfast.cli.arguments import checked, finite
from holdfast.cli.output import AsJson, report, say, say_aside
from holdfast.errors import SettingsError


def inject(  # noqa: PLR0917  (typer)
    fault: Annotated[
        str,
        typer.Argument(
            help="kill-rank, kill-machine, kill-agent, kill-replica, hang-rank, xid-79, bad-matmul, wrong-bits, nan, "
            "flip-bit, code-bug; for a while: packet-loss, slow-machine, full-disk, readonly-disk, memory-pressure, "
            "s3-503."
        ),
    ] = "",
    machine: Annotated[
        str | None,
        typer.Option(
            help="Where, as `holdfast machines` lists it (default: the last one of the job that runs).",
            callback=checked(names.MACHINE),
        ),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Which rank (default: the machine's first).")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="How long one that lasts lasts; Ctrl-C ends it too.", callback=finite)
    ] = 60.0,
    percent: Annotated[
        float | None,
        typer.Option(help="Packets that are lost (default: 5), or speed (default: 50).", callback=finite),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Option(help="Folder that a disk fault comes over (default: `data` of the machine's folder)."),
    ] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Undo faults that last, also of one that was killed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Inject a real fault underneath a running job (demo, tests, game days)."""
    home = context.settings().home
    # boto3 and psutil: other commands need neither
    from holdfast import inject as faults  # noqa: PLC0415
    from holdfast.inject import lasting, target  # noqa: PLC0415

    if undo:
        undone = lasting.undo(home)
        report(as_json, f"undone: {', '.join(undone) or 'nothing was left'}.", undone=undone)
        return
    if not fault:
        raise SettingsError("name a fault; `holdfast inject --help` lists them")
    chosen = machine or target.any_machine(home)
    watch = "Watch it with `holdfast status` and `holdfast incidents`."
    if fault not in lasting.LASTING:
        done = faults.inject(home, fault, chosen, rank)
        where = done.machine if done.rank is None else f"{done.machine}, rank {done.rank}"
        line = f"{done.fault} injected on {where}. {watch}"
        report(as_json, line, fault=done.fault, machine=done.machine, rank=done.rank)
        return
    with lasting.lasting(home, fault, chosen, rank=rank, percent=percent, path=path) as seen:
        line = f"{fault} on {chosen} for {seconds:g} s: {seen.change}. {watch}"
        report(as_json, line, fault=fault, machine=chosen, rank=seen.rank, seconds=seconds, told=seen.change)
        try:
            time.sleep(seconds)
        except KeyboardInterrupt:
            say_aside("")
    if not as_json:
        say(f"{fault} is undone.")
