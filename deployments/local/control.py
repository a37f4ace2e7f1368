"""``holdfast up`` and ``holdfast down``: the whole site of one machine, all or nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from holdfast import drivers, secret
from holdfast.deployments.local import bringup, envfile, pidfile, ports
from holdfast.deployments.local import machines as local_machines
from holdfast.deployments.local.supervisor import NAME as SUPERVISOR
from holdfast.deployments.local.supervisor import STOP_S
from holdfast.settings import Settings, load
from holdfast.storage.ledger import Ledger

Progress = Callable[[str], None]

DOWN_S = 6 * STOP_S
"""The supervisor stops its services one after the other."""


def is_up(home: Path) -> bool:
    """Whether the embedded services of ``home`` run."""
    return pidfile.running(home, SUPERVISOR) is not None


def up(
    where: Settings | Path, machines: int = 0, progress: Progress = print, *, port: int | None = None
) -> Settings:
    """Start the services and ``machines`` local machines; returns the settings that hold from now on.

    What runs already is left alone. If anything fails, all that was started is stopped again.

    Args:
        where: settings, or the folder that keeps all state (made if it does not exist).
        machines: how many machines there should be, standbys included.
        progress: takes one line per thing that is done.
        port: the gateway's port, over what the settings say; Prefect and S3 take the next two.

    Raises:
        SettingsError: a port is taken, a setting is wrong, the bucket cannot be had.
        UnavailableError: a service or machine did not come up (with the last lines of its log).
    """
    settings = _settings(where, port)
    if is_up(settings.home):
        running = load(settings.home)
        progress(f"services of {running.home} are up already: gateway {running.gateway}")
        local_machines.have(running, machines, progress, threading.Event())
        return running
    ports.check(settings)
    try:
        _prepare(settings)
        bringup.start(settings, machines, progress)
    except BaseException:
        # Also on Ctrl-C: nothing is left running.
        down(settings, progress=lambda _: None)
        raise
    progress(f"up: gateway {settings.gateway}, Prefect UI {settings.prefect_api.removesuffix('/api')}")
    return settings


def down(where: Settings | Path, progress: Progress = print) -> None:
    """Stop services and machines; state stays. Harmless when nothing runs.

    Jobs that were running are noted as stopped: their machines are gone, their checkpoints in S3 stay.

    Raises:
        UnavailableError: something survived (named).
    """
    home = (where if isinstance(where, Path) else where.home).resolve()
    if not home.is_dir():
        return
    settings = load(home) if isinstance(where, Path) else where
    # First those who would see the machines die, and act.
    if _stop_services(home):
        progress("services are stopped")
    driver = drivers.from_settings(settings)
    if driver.machines():
        local_machines.retire_all(settings, driver)
        progress("machines are gone")


def _settings(where: Settings | Path, port: int | None) -> Settings:
    settings = where if isinstance(where, Settings) else load(where.resolve())
    changes: dict[str, object] = {"home": settings.home.resolve()}
    if port is not None:
        changes["port"] = port
    return settings.model_copy(update=changes)


def _prepare(settings: Settings) -> None:
    settings.home.mkdir(parents=True, exist_ok=True)
    secret.create(settings.secret_path)
    envfile.remember(settings)
    if not settings.s3_endpoint:
        # A bucket of the embedded server is a folder.
        (settings.home / "s3" / settings.s3_bucket).mkdir(parents=True, exist_ok=True)
    ledger = Ledger(settings.database)
    ledger.create()
    ledger.close()


def _stop_services(home: Path) -> bool:
    supervisor = pidfile.running(home, SUPERVISOR)
    if supervisor is not None:
        _end(supervisor, DOWN_S)
    # One that was killed itself may have left services that are still on their way out.
    for file in (home / "run").glob("*.json"):
        if left := pidfile.running(home, file.stem):
            _end(left, STOP_S)
        file.unlink(missing_ok=True)
    return supervisor is not None


def _end(process: psutil.Process, patience_s: float) -> None:
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        process.terminate()
        try:
            process.wait(patience_s)
        except psutil.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
