"""``holdfast up`` and ``holdfast down``: the whole site of one machine, all or nothing."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from holdfast import drivers, durable, envfile, private, proxies, redact, secret, tls
from holdfast.deployments.local import bringup, pidfile, prefect_database, service_ports
from holdfast.deployments.local import machines as local_machines
from holdfast.deployments.local.supervisor import NAME as SUPERVISOR
from holdfast.deployments.local.supervisor import STOP_S
from holdfast.deployments.worker.environment import socket_path
from holdfast.errors import HoldfastError, SettingsError, UnavailableError
from holdfast.paths import log_dir
from holdfast.plugins.policy import site_policy
from holdfast.settings import Settings, load
from holdfast.storage.ledger import Ledger

Progress = Callable[[str], None]

LOCAL_MOST = 64
_LOOK_S = 1.0
DOWN_S = 6 * STOP_S
"""The supervisor stops its services one after the other."""


def is_up(home: Path) -> bool:
    """Return whether the embedded services of ``home`` run."""
    return pidfile.running(home, SUPERVISOR) is not None


def up(
    where: Settings | Path, machines: int = 0, progress: Progress = print, *, port: int | None = None
) -> Settings:
    """Start the services and ``machines`` local machines; returns the settings that hold from now on.

    What runs already is left alone. If anything fails, all that was started is stopped again; machines that were
    there before go on. Of two at once the second waits for the first.

    Args:
        where: settings, or the folder that keeps all state (made if it does not exist).
        machines: how many machines there should be, standbys included.
        progress: takes one line per thing that is done.
        port: the gateway's port, over that of the settings; Prefect and S3 take the next two.

    Raises:
        SettingsError: a port is taken, a setting is wrong, the bucket cannot be had.
        UnavailableError: a service or machine did not come up (with the last lines of its log).
    """
    settings = _settings(where, port)
    if settings.driver == "local" and machines > LOCAL_MOST:
        raise SettingsError(
            f"--machines {machines}: expected {LOCAL_MOST} at most, as all are processes of this host. "
            "HOLDFAST_DRIVER names an engine that has more."
        )
    if not is_up(settings.home):
        # Before the folder is made.
        _require_sound(settings)
        service_ports.check(settings)
    with _ended_in_order(), _alone(settings.home, progress):
        if is_up(settings.home):
            return _more_machines(settings.home, machines, progress, port)
        started: list[str] = []
        with envfile.kept(settings.home):
            try:
                _prepare(settings)
                bringup.start(settings, machines, progress, started)
            except BaseException:
                # Also on Ctrl-C and SIGTERM: nothing is left running that this started.
                _take_back(settings, machines, started, progress)
                raise
    progress(f"up: gateway {redact.link(settings.gateway)}, Prefect UI {redact.link(settings.prefect_ui)}")
    return settings


def stay(settings: Settings) -> None:
    """Wait for SIGTERM or SIGINT, then stop the services; machines are left running. For containers.

    Raises:
        UnavailableError: the supervisor ended by itself.
    """
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    while not asked.wait(_LOOK_S):
        _reap()
        if not is_up(settings.home):
            raise UnavailableError(
                f"the supervisor ended: see {log_dir(settings.home) / f'{SUPERVISOR}.log'}."
            )
    _stop_services(settings.home)


def down(where: Settings | Path, progress: Progress = print, *, keep_machines: bool = False) -> None:
    """Stop services and machines; state stays. Harmless when nothing runs.

    Jobs that were running are noted as stopped: their machines are gone, their checkpoints in S3 stay.

    Args:
        where: settings, or the folder that keeps all state.
        progress: takes one line per thing that is done.
        keep_machines: stop the services alone; machines and their jobs go on.

    Raises:
        UnavailableError: something survived (named).
    """
    home = (where if isinstance(where, Path) else where.home).resolve()
    if not home.is_dir():
        return
    # First those who would see the machines die, and act; no setting is needed for it, and one may be wrong.
    if _stop_services(home):
        progress("services are stopped")
    if keep_machines:
        return
    settings = load(home) if isinstance(where, Path) else where
    driver = drivers.from_settings(settings)
    driver.withdraw()
    if driver.machines():
        local_machines.retire_all(settings, driver)
        progress("machines are gone")


@contextlib.contextmanager
def _alone(home: Path, progress: Progress) -> Iterator[None]:
    """Keep every other ``up`` of this folder waiting: two would start all of it twice, and each end the other's."""
    private.folder(home, or_roots=True)
    with open(home / envfile.UP_LOCK, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another `holdfast up` of this folder is under way: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Have signals end this process by an exception, as Ctrl-C does: the default would leave half a site behind.

    SIGTERM, and SIGHUP, when its terminal is closed, unless that is ignored (``nohup``).
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # no other thread may handle signals
        return
    heeded = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) != signal.SIG_IGN]

    def end(number: int, _frame: object) -> None:
        for each in heeded:
            signal.signal(each, lambda *_: None)  # a second one does not end the cleaning up
        sys.exit(128 + number)

    before = {each: signal.signal(each, end) for each in heeded}
    try:
        yield
    finally:
        for each, was in before.items():
            signal.signal(each, was if was is not None else signal.SIG_DFL)


def _more_machines(home: Path, machines: int, progress: Progress, port: int | None) -> Settings:
    """Start what is missing to ``machines`` of a site whose services run; returns its settings."""
    running = load(home)
    progress(f"services of {running.home} are running already: gateway {running.gateway}")
    if port not in (None, running.port):
        progress(f"--port {port}: the port is not changed while they run; `holdfast down` first")
    local_machines.have(running, machines, progress, threading.Event())
    bringup.register_again(running, progress)
    return running


def _take_back(settings: Settings, wanted: int, started: list[str], progress: Progress) -> None:
    """Stop the services again, and end the machines that this ``up`` has started.

    Others may train: that a control plane does not come up (its S3 is away, its host is slow) ends none of them.
    """
    _stop_services(settings.home)
    try:
        if wanted:
            driver = drivers.from_settings(settings)
            # Beside machines of before, what waits at the engine may be for their job: it keeps its place there.
            if {each.name for each in driver.machines()} <= set(started):
                driver.withdraw()
        local_machines.take_back(settings, started)
    except HoldfastError as error:
        progress(f"not all that was started is stopped again, `holdfast down` does it: {error}")


def _reap() -> None:
    """Reap orphans: as process 1 of a container we inherit the children of others."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _settings(where: Settings | Path, port: int | None) -> Settings:
    settings = where if isinstance(where, Settings) else load(where.resolve())
    changes: dict[str, object] = {"home": settings.home.resolve()}
    if port is not None:
        changes["port"] = port
    return settings.model_copy(update=changes)


def _require_sound(settings: Settings) -> None:
    """Refuse what a service or an agent would refuse later, while nothing is started or written."""
    proxies.require_usable(os.environ)
    site_policy(settings.policy_file)
    drivers.from_settings(settings)
    if not settings.prefect_api_url:
        prefect_database.require_usable(settings.prefect_database_url)
    tls.of(settings).server()


def _prepare(settings: Settings) -> None:
    durable.sync(settings.home.parent)
    if not settings.shared_secret.get_secret_value():
        secret.create(settings.secret_path)
    if settings.driver == "local":
        # Machines elsewhere have no such file: they use the shared secret, as all did before.
        secret.create(settings.home / "s3-secret")
    secret.create_prefect_auth(settings)
    envfile.remember(settings)
    if settings.embedded_s3:
        # A bucket of the embedded server is a folder.
        for folder in (settings.home / "s3", settings.home / "s3" / settings.bucket):
            private.folder(folder)
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
    socket_path(home).unlink(missing_ok=True)
    return supervisor is not None


def _end(process: psutil.Process, patience_s: float) -> None:
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        process.terminate()
        try:
            process.wait(patience_s)
        except psutil.TimeoutExpired:
            # By itself first: the supervisor, which was detached, leads no group.
            process.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            _wait_killed(process)


def _wait_killed(process: psutil.Process) -> None:
    try:
        process.wait(STOP_S)
    except psutil.TimeoutExpired:
        raise UnavailableError(f"process {process.pid} survived SIGKILL for {STOP_S:.0f} s") from None
