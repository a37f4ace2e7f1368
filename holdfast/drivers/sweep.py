"""``python -m holdfast.drivers.sweep --machine NAME --home HOME``: nothing of a machine is left on its host."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from holdfast.drivers import processes
from holdfast.errors import UnavailableError
from holdfast.paths import machine_dir, shm_dir


def main(arguments: list[str] | None = None) -> int:
    """Run on the host, as by a batch script of Slurm; returns the exit status."""
    parser = argparse.ArgumentParser("holdfast.drivers.sweep", description="End what runs of a machine.")
    parser.add_argument("--machine", required=True, help="name of the machine")
    parser.add_argument("--home", required=True, type=Path, help="the site's .holdfast folder")
    parser.add_argument("--disk", action="store_true", help="remove the machine's folder as well")
    options = parser.parse_args(arguments)
    folder = machine_dir(options.home, options.machine)
    try:
        processes.kill_all(folder)
    except UnavailableError as error:
        print(f"holdfast: {error}", file=sys.stderr)  # noqa: T201
        return 1
    shutil.rmtree(shm_dir(options.home, options.machine), ignore_errors=True)
    if options.disk:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
