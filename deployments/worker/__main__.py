"""``python -m holdfast.deployments.worker --home HOME``: the playbook worker."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import signal
from pathlib import Path

from holdfast import drivers
from holdfast.deployments.worker.environment import adopt, socket_path
from holdfast.listen import many_files
from holdfast.settings import Settings, load


async def serve(settings: Settings) -> None:
    """Run the worker until SIGTERM or SIGINT; the runs under way then end as Crashed."""
    # Prefect reads its environment when it is imported, so only now.
    from holdfast.deployments.worker import manifest, pokes  # noqa: PLC0415
    from holdfast.deployments.worker.warm import WarmPool  # noqa: PLC0415
    from holdfast.deployments.worker.worker import HoldfastWorker  # noqa: PLC0415

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    preloaded = [*manifest.modules(manifest.all_deployments()), *drivers.modules(settings.driver)]
    pool = WarmPool(settings.warm_runs, preloaded)
    worker = HoldfastWorker(settings.work_pool, pool=pool, name=worker_name(settings.home))
    path = socket_path(settings.home)
    server = await pokes.listen(path, worker)
    try:
        await worker.serve(stop)
    finally:
        server.close()
        path.unlink(missing_ok=True)


def worker_name(home: Path) -> str:
    """Return the worker's name, by host and home: the same after a restart, another for every worker of a pool."""
    return (
        f"holdfast-{os.uname().nodename}-{hashlib.blake2s(bytes(home.resolve()), digest_size=3).hexdigest()}"
    )


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.deployments.worker", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="the project's .holdfast folder")
    settings = load(parser.parse_args().home.resolve())
    adopt(settings)
    many_files()  # the processes of playbooks inherit it
    asyncio.run(serve(settings))


if __name__ == "__main__":
    main()
