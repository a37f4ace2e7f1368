"""``python -m holdfast.deployments.gateway --home HOME``: the alert gateway."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import socket
import sys
from pathlib import Path

import uvicorn

from holdfast import process_name, secret, tls
from holdfast.agent.client import agents_client
from holdfast.clock import SystemClock
from holdfast.deployments.gateway.app import create_app
from holdfast.deployments.gateway.detectors.probe import HttpProber
from holdfast.deployments.gateway.detectors.stacks import HttpStacks
from holdfast.deployments.gateway.fleet.acts import ApartOperations
from holdfast.deployments.gateway.intake.prefect_events import PrefectEvents
from holdfast.deployments.gateway.metrics import Metrics
from holdfast.deployments.worker.environment import adopt, socket_path
from holdfast.errors import HoldfastError, SettingsError
from holdfast.guarded_http import guarded
from holdfast.listen import KEEP_ALIVE_S, handed_over, listen, many_files
from holdfast.operations.context import Context
from holdfast.plugins.policy import site_policy
from holdfast.settings import Settings, load
from holdfast.shown import log_plainly
from holdfast.storage.ledger import Ledger
from holdfast.tls import require_tls

_BACKLOG = 2048


async def serve(settings: Settings, listening: socket.socket) -> None:
    """Run the gateway until SIGTERM or SIGINT."""
    # Prefect reads its environment when it is imported, so only now; and before the first alert, not at it.
    from holdfast.deployments.gateway.runs.prefect_runs import PrefectRuns  # noqa: PLC0415

    ledger = Ledger(settings.database)
    await asyncio.to_thread(ledger.create)
    # The gateway's own acts write through the ledger that is closed to one that leads no more.
    ctx = Context(settings, known_ledger=ledger)
    metrics, policy = Metrics(), site_policy(settings.policy_file, usable=True)
    runs = PrefectRuns(settings.home, socket_path(settings.home), metrics, settings.work_pool)
    certified = tls.of(settings)
    async with agents_client(certified.http()) as http:

        async def opening() -> None:
            await runs.open()
            await events.open()

        async def closing() -> None:
            await events.close()
            await runs.close()

        shared = secret.of(settings)
        app = create_app(
            settings,
            ledger,
            SystemClock(),
            runs,
            prober=HttpProber(http, policy.gateway, metrics, certified, shared),
            acts=ApartOperations(ctx),
            secret=shared,
            stacks=HttpStacks(http, shared, certified),
            policy=policy,
            metrics=metrics,
            leader=own_name(settings),
            opening=opening,
            closing=closing,
        )
        events = PrefectEvents(app.state.gateway.correlator)

        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            http=guarded(),
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        config.load()
        config.ssl = certified.server()
        gc.freeze()  # modules, routes and settings stay for its life: collections need not look through them
        await uvicorn.Server(config).serve(sockets=[listening])
    ledger.close()


def own_name(settings: Settings, boot_id: Path = process_name.BOOT_ID) -> str:
    """Return this gateway's name among those of its ledger: the same after a restart, another on every other host.

    Hosts made from one image may all have one host name; no two have the same boot.
    """
    boot = process_name.boot(boot_id)
    return ":".join(filter(None, (os.uname().nodename, str(settings.port), boot)))


def _listen(settings: Settings) -> socket.socket:
    """Return the gateway's socket, taken before anything else is done."""
    require_tls(settings, settings.host, "HOLDFAST_HOST")
    try:
        return handed_over(_BACKLOG) or listen(settings.host, settings.port, _BACKLOG)
    except OSError as error:
        raise SettingsError(
            f"HOLDFAST_PORT = {settings.port} on {settings.host}: {error.strerror}. Stop what listens there, or "
            "set HOLDFAST_PORT to a free port (with two free ports after it)."
        ) from None


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.deployments.gateway", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="the project's .holdfast folder")
    arguments = parser.parse_args()
    log_plainly()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        settings = load(arguments.home.resolve())
        adopt(settings)
        many_files()
        asyncio.run(serve(settings, _listen(settings)))
    except HoldfastError as error:
        sys.exit(f"gateway: {error}")


if __name__ == "__main__":
    main()
