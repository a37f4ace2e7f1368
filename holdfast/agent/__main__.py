"""``python -m holdfast.agent --machine NAME --home HOME``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

from holdfast import names, proxies, secret, settings
from holdfast.agent.ranks import scratch
from holdfast.errors import HoldfastError, SettingsError
from holdfast.listen import facing
from holdfast.paths import machine_dir
from holdfast.shown import log_plainly, plain
from holdfast.tls import require_tls

MODULES = "holdfast.agent.daemon"
"""With all that a running agent needs."""


def main(arguments: list[str] | None = None) -> int:
    """Run the agent; returns the exit status."""
    parser = argparse.ArgumentParser("holdfast.agent", description="The agent of one machine.")
    parser.add_argument("--machine", required=True, help="name of this machine")
    parser.add_argument("--home", required=True, type=Path, help="the project's .holdfast folder")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on, reachable by all machines; auto: the one that faces the gateway",
    )
    options = parser.parse_args(arguments)
    log_plainly()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    os.environ.update(proxies.exceptions(os.environ))
    try:
        return asyncio.run(_run(options.machine, options.home.resolve(), options.host))
    except HoldfastError as error:
        print(plain(f"holdfast agent: {error}"), file=sys.stderr)  # noqa: T201
        return 1


async def _run(machine: str, home: Path, host: str) -> int:
    names.require(names.MACHINE, machine, "--")
    if not home.is_dir():
        raise SettingsError(f"--home {home}: no such folder. `holdfast up` makes it.")
    chosen = settings.load(home)
    host = facing(chosen.gateway) if host == "auto" else host
    require_tls(chosen, host, "--host")
    from holdfast.agent.daemon import Agent  # noqa: PLC0415  (wrong arguments are refused at once)

    with scratch.own(machine_dir(home, machine) / "tmp"):
        try:
            agent = Agent(machine, home, chosen, secret.of(chosen), host)
        except OSError as error:
            raise SettingsError(f"--host {host}: cannot listen there ({error.strerror})") from None
        return await agent.run()


def run_and_exit(arguments: list[str] | None = None) -> NoReturn:
    """Run the agent as this process."""
    status = main(arguments)
    # All forked processes are dead; multiprocessing's exit handlers would only wait for it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    run_and_exit()
