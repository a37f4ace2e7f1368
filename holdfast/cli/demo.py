"""``demo``: a training job, six real faults, and the weights compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output import out, say
from holdfast.errors import SettingsError

DEFAULT_STEPS = 160
SCRIPT = Path("examples") / "train_gpt.py"


def demo(
    steps: Annotated[
        int, typer.Option(min=20, help="Training steps; the faults need about 100.")
    ] = DEFAULT_STEPS,
    port: Annotated[
        int | None, typer.Option(min=1, max=65533, help="Gateway's port; Prefect and S3 take the next two.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the services running afterwards.")] = False,
) -> None:
    """Six machines, a training job, six faults underneath it; then the weights are compared bit by bit."""
    script = example(Path.cwd())
    from holdfast.demo import stage  # noqa: PLC0415  (needs the control plane's extras)

    if not stage.play(
        script, stage.home(Path.cwd()), steps=steps, port=port, keep=keep, console=out, say=say
    ):
        raise typer.Exit(1)


def example(folder: Path) -> Path:
    """Return the training script of the demo.

    Raises:
        SettingsError: ``folder`` is no clone of Holdfast.
    """
    script = folder / SCRIPT
    if not script.is_file():
        raise SettingsError(
            f"no {SCRIPT} in {folder}: the demo trains it. Run `make demo` in a clone of Holdfast."
        )
    return script
