"""``python -m holdfast.deployments.local.supervisor --home HOME``: keeps the embedded services alive.

A service that ends is restarted, at once the first time, then at growing delays (up to 10 s) until it has lived
for a while. SIGTERM stops all of them, last started first, in bounded time; SIGHUP none. They get SIGTERM from the
kernel should the supervisor itself be killed, so that none is left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import logging
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import psutil

from holdfast import private
from holdfast.deployments.local import pidfile
from holdfast.deployments.local.held_port import HeldPort
from holdfast.deployments.local.services import Service, embedded
from holdfast.errors import HoldfastError
from holdfast.listen import ENV_SOCKET
from holdfast.paths import log_dir, run_dir
from holdfast.settings import load
from holdfast.shown import log_plainly

NAME = "supervisor"
STOP_S = 8.0
"""A service that does not stop when asked is killed after this long."""
LIVED_S = 30.0
"""A service that lived this long starts again without delay."""
FIRST_DELAY_S, LONGEST_DELAY_S = 0.1, 10.0
LOG_LIMIT_BYTES = 64 * 2**20
LOG_LOOK_S = 60.0

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_log = logging.getLogger("holdfast.supervisor")


class Keeper:
    """Keeps one service alive until it is asked to stop."""

    def __init__(self, service: Service, home: Path) -> None:
        self._service = service
        self._home = home
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._held: HeldPort | None = None

    async def keep(self) -> None:
        """Start the service, again and again, until :meth:`stop`."""
        try:
            await self._keep()
        finally:
            if self._held is not None:
                self._held.close()

    async def _keep(self) -> None:
        delay = FIRST_DELAY_S
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                how = await self._run_once()
            except OSError as error:
                how = f"could not be started: {error}"
            if self._stopping.is_set():
                return
            if time.monotonic() - started > LIVED_S:
                delay = FIRST_DELAY_S
            _log.warning("%s %s; again in %.1f s", self._service.name, how, delay)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopping.wait()
            delay = min(delay * 3, LONGEST_DELAY_S)

    async def stop(self) -> None:
        """Stop it: SIGTERM, then SIGKILL to its group."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            _log.warning("%s did not stop within %.0f s: killed", self._service.name, STOP_S)
        # Whatever it started shares its session.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        _log.info("%s stopped", self._service.name)

    async def _run_once(self) -> str:
        name = self._service.name
        path = self._service.log(self._home)
        _rotate(path)
        held = self._hold()
        handed = {} if held is None else {ENV_SOCKET: str(held.fileno())}
        with path.open("ab") as output:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._service.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | dict(self._service.env) | handed,
                pass_fds=() if held is None else (held.fileno(),),
                cwd=self._home,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        try:
            pidfile.write(self._home, name, process.pid)
        except (OSError, psutil.Error) as error:
            # A full disk, or it has ended already: it is waited for, or a second one would be started beside it.
            _log.warning("%s: its pid file could not be written: %s", name, error)
        _log.info("%s started as %d", name, process.pid)
        cutting = asyncio.create_task(_keep_short(path), name=f"log of {name}")
        try:
            status = await process.wait()
        finally:
            cutting.cancel()
            if held is not None:
                held.rest()
        pidfile.remove(self._home, name)
        # Its children are left to notice by themselves: runs of a dead worker still report how they ended.
        return f"ended with {signal.Signals(-status).name if status < 0 else f'status {status}'}"

    def _hold(self) -> HeldPort | None:
        """Return the port that is held for the service; None: it takes its own, and reports why where it cannot."""
        service = self._service
        if self._held is None and service.host and service.port:
            try:
                self._held = HeldPort(service.host, service.port)
            except OSError as error:
                _log.warning("%s: port %d cannot be held: %s", service.name, service.port, error)
        return self._held


async def supervise(services: list[Service], home: Path) -> None:
    """Keep ``services`` alive until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _log.info, "SIGHUP changes nothing here")
    keepers = [Keeper(service, home) for service in services]
    tasks = [asyncio.create_task(keeper.keep()) for keeper in keepers]
    await stop.wait()
    _log.info("stopping")
    for keeper in reversed(keepers):
        await keeper.stop()
    await asyncio.gather(*tasks)


def _die_with_parent() -> None:
    """Set up the child before exec: it dies with the supervisor, and heeds SIGTERM whatever process started this."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _rotate(path: Path) -> None:
    """Keep one former log, so that a service in a restart loop cannot fill the disk."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > LOG_LIMIT_BYTES:
            path.replace(path.with_suffix(".log.1"))


async def _keep_short(path: Path) -> None:
    """Cut the log of a service that runs, again and again: it may run for months."""
    while True:
        await asyncio.sleep(LOG_LOOK_S)
        await asyncio.to_thread(_cut, path)


def _cut(path: Path) -> None:
    """Move what a log has to the former one, once it is too long; the service keeps its file, and appends."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > LOG_LIMIT_BYTES:
            shutil.copyfile(path, path.with_suffix(".log.1"))
            os.truncate(path, 0)


def _detach() -> None:
    """Leave the caller: a child of a child in its own session has init as parent and no terminal."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def main() -> None:
    """Parse the command line and supervise."""
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.deployments.local.supervisor", description=__doc__
    )
    parser.add_argument("--home", type=Path, required=True, help="the project's .holdfast folder")
    parser.add_argument("--detach", action="store_true", help="run in the background")
    options = parser.parse_args()
    home = options.home.resolve()
    try:
        services = embedded(load(home))
    except HoldfastError as error:
        sys.exit(f"supervisor: {error}")
    for folder in (log_dir(home), run_dir(home)):
        private.folder(folder)
    # Also for what the services write: ledger, objects, logs.
    os.umask(0o077)
    if pidfile.running(home, NAME):
        sys.exit(f"supervisor: one runs for {home} already; `holdfast down` stops it")
    if options.detach:
        _detach()
    log_plainly(filename=str(log_dir(home) / f"{NAME}.log"))
    pidfile.write(home, NAME, os.getpid())
    try:
        asyncio.run(supervise(services, home))
    finally:
        pidfile.remove(home, NAME)


if __name__ == "__main__":
    main()
