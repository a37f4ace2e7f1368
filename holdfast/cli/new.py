"""``new playbook``: the files of a playbook of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output import AsJson, print_json, say
from holdfast.scaffold import playbook as scaffold

app = typer.Typer(help="Write the files of something new.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command()
def playbook(
    name: Annotated[str, typer.Argument(help="Incident class and flow, such as thermal_throttling.")],
    into: Annotated[
        Path, typer.Option("--into", metavar="FOLDER", help="The repository; made if it is not there.")
    ] = Path(),
    package: Annotated[
        str, typer.Option(help="Python package of a new repository; default: after the folder.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Write a playbook's flow, policy entry, test and deployment into a repository of its own."""
    written = scaffold.write(name, into, package)
    if as_json:
        print_json([str(path) for path in written])
        return
    for path in written:
        say(f"wrote {path}")
    say(f"Try it: cd {into} && python -m pytest. Then install it where Holdfast runs: pip install -e {into}")
