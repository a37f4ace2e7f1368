"""Puts the demo on: services up, the job with its faults, the run without, the report, and everything down."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from holdfast.client import links
from holdfast.client.gateway import Gateway
from holdfast.demo import written_report
from holdfast.demo.demo_run import DemoRun
from holdfast.deployments.local import control
from holdfast.errors import RefusedError
from holdfast.settings import HOME_NAME, Settings

POLICY = Path(__file__).with_name("policy.yaml")
_POLICY_VARIABLE = "HOLDFAST_POLICY_FILE"
MACHINES, RANKS_PER_MACHINE, STANDBYS = 4, 2, 2


def home(project: Path) -> Path:
    """Return where the demo keeps its state."""
    return Path(os.environ.get("HOLDFAST_HOME", project / HOME_NAME)).resolve()


def play(
    script: Path,
    folder: Path,
    *,
    steps: int,
    port: int | None,
    keep: bool,
    console: Console,
    say: Callable[[str], None],
) -> bool:
    """Play the whole demo; return whether all was recovered and the weights are the same.

    Args:
        script: the training script.
        folder: for all state.
        steps: of the training.
        port: the gateway's; None: as set.
        keep: whether the services stay up.
        console: for the view and the tables.
        say: prints a line.

    Raises:
        RefusedError: a control plane runs there already.
    """
    with _services(folder, port, keep, say) as settings, Gateway.open(settings) as gateway:
        run = DemoRun(
            settings,
            gateway,
            script,
            console,
            steps=steps,
            machines=MACHINES,
            ranks_per_machine=RANKS_PER_MACHINE,
            standbys=STANDBYS,
        )
        report = run.play()
        reports = written_report.write(report, folder / "demo")
        written_report.summarise(report, console)
        say(f"report      {reports / 'report.html'} (and report.json)")
        say(links.prefect_ui(settings))
    return report.ok


@contextmanager
def _services(folder: Path, port: int | None, keep: bool, say: Callable[[str], None]) -> Iterator[Settings]:
    """Run the control plane and six machines that accept injected faults; down again at the end and on Ctrl-C."""
    if control.is_up(folder):
        raise RefusedError(
            f"services of {folder} are up: the demo breaks machines, so it wants a control plane of its own. "
            "Run `holdfast down` first, or run the demo in another clone with `--port`."
        )
    # Agents hand this to their ranks; without it, an injected fault of the arithmetic is refused.
    os.environ["HOLDFAST_ARM_FAULTS"] = "1"
    os.environ.setdefault(_POLICY_VARIABLE, str(POLICY))
    previous = signal.signal(signal.SIGTERM, _interrupt)
    finished = False
    try:
        settings = control.up(folder, MACHINES + STANDBYS, say, port=port)
        _forget_policy(folder / "settings.env")
        yield settings
        finished = True
    finally:
        # Ctrl-C leaves nothing running, whatever the options.
        if not (keep and finished):
            control.down(folder, say)
        signal.signal(signal.SIGTERM, previous)
    say(
        "`holdfast down` stops the services"
        if keep
        else "`holdfast up` brings the Prefect UI and all runs back"
    )


def _forget_policy(settings_file: Path) -> None:
    """Drop the demo's policy, which is for this run: a later ``holdfast up`` of the project has its own again."""
    if settings_file.exists():
        lines = settings_file.read_text().splitlines(keepends=True)
        settings_file.write_text(
            "".join(line for line in lines if line.strip() != f"{_POLICY_VARIABLE}={POLICY}")
        )


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
