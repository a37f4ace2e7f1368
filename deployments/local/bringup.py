"""Starting everything side by side, and waiting until all of it answers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from holdfast import envfile, secret, tls
from holdfast.deployments.local import machines, pidfile
from holdfast.deployments.local.services import Service, embedded
from holdfast.deployments.local.supervisor import NAME as SUPERVISOR
from holdfast.deployments.worker.environment import adopt, foreign
from holdfast.errors import HoldfastError, SettingsError, UnavailableError
from holdfast.paths import log_dir
from holdfast.policies.join_names import join_names
from holdfast.settings import Settings
from holdfast.storage import objects

Progress = Callable[[str], None]

DEATHS = 4
"""A service that was started this often without ever answering will not come up."""
REPORT_EVERY_S = 5.0
"""Between two lines that name what has not come up yet."""
_LAST_LINES = 15
_ASKED_S = 5.0


def start(settings: Settings, wanted: int, progress: Progress, started: list[str]) -> None:
    """Start the supervisor and ``wanted`` machines, register the deployments; returns when all are ready.

    Machines start while the services do; their agents try to register until the gateway is there. ``started`` takes
    the names of new machines, also where this fails.

    Raises:
        SettingsError: a flow, the bucket or a setting is wrong.
        UnavailableError: something did not come up (with the last lines of its log).
    """
    services = embedded(settings)
    names = [*(service.says for service in services), *([f"{wanted} machines"] if wanted else [])]
    progress(f"starting {', '.join(names)}")
    _launch(settings)
    # Before there are threads, one of which copies the environment for machines.
    adopt(settings)
    over = threading.Event()
    with ThreadPoolExecutor(3) as beside:
        work: dict[str, Future[Any]] = {
            "bucket": beside.submit(_have_bucket, settings),
            "deployments": beside.submit(_register, settings, services, progress, over),
            f"{wanted} machines": beside.submit(machines.have, settings, wanted, progress, over, started),
        }
        try:
            _wait(settings, services, work, progress)
        finally:
            over.set()


def _launch(settings: Settings) -> None:
    command = [sys.executable, "-P", "-m", "holdfast.deployments.local.supervisor"]
    launched = subprocess.run(
        [*command, "--home", str(settings.home), "--detach"],
        # Settings chosen now take precedence over those of the environment.
        env=_environment(settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if launched.returncode:
        raise UnavailableError(f"the supervisor did not start: {launched.stderr.strip()}")


def _environment(settings: Settings) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name not in foreign(settings, os.environ)}
    return own | envfile.chosen(settings)


def _wait(
    settings: Settings, services: Sequence[Service], work: Mapping[str, Future[Any]], progress: Progress
) -> None:
    """Wait until every service answers and all work beside is done; raises the first error of that."""
    waiting, launched = list(services), time.monotonic()
    until, reported_at = launched + settings.up_s, launched
    starts: dict[str, set[int]] = {service.name: set() for service in services}
    while waiting or not all(each.done() for each in work.values()):
        for each in work.values():
            if each.done():
                each.result()
        if (now := time.monotonic()) - reported_at >= REPORT_EVERY_S:
            reported_at = now
            missing = [each.says for each in waiting] + [
                name for name, each in work.items() if not each.done()
            ]
            progress(f"  {now - launched:.0f} s: waiting for {', '.join(missing)}")
        for service in [each for each in waiting if each.healthy()]:
            progress(f"{service.says} is up")
            waiting.remove(service)
        for service in waiting:
            if process := pidfile.running(settings.home, service.name):
                starts[service.name].add(process.pid)
            if len(starts[service.name]) >= DEATHS:
                raise UnavailableError(_why([service], settings.home, f": it was started {DEATHS} times"))
        died = time.monotonic() > launched + 2 and pidfile.running(settings.home, SUPERVISOR) is None
        if waiting and died:
            log = log_dir(settings.home) / f"{SUPERVISOR}.log"
            raise UnavailableError(_why(waiting, settings.home, f": the supervisor ended (see {log})"))
        if waiting and time.monotonic() > until:
            raise UnavailableError(
                _why(waiting, settings.home, f" within {settings.up_s:g} s (HOLDFAST_UP_S)")
            )
        time.sleep(0.05)
    for each in work.values():
        each.result()


def _have_bucket(settings: Settings) -> None:
    """Make sure that a store elsewhere has the bucket, or create it there."""
    if settings.embedded_s3:
        return
    try:
        objects.from_settings(settings).ensure_bucket()
    except HoldfastError as error:
        raise SettingsError(_no_store(settings, error)) from error


def _no_store(settings: Settings, error: HoldfastError) -> str:
    if not settings.stored_in_s3:
        return f"HOLDFAST_STORE = {settings.store_url!r}: {error}"
    return (
        f"bucket {settings.bucket!r} at {settings.s3}: {error} "
        "Check HOLDFAST_S3_ENDPOINT, HOLDFAST_S3_BUCKET and the keys."
    )


def _register(
    settings: Settings, services: Sequence[Service], progress: Progress, over: threading.Event
) -> None:
    """Register the deployments as soon as the API answers; Prefect is imported while the server starts."""
    from holdfast.deployments.worker import register  # noqa: PLC0415  (costs a second)

    register.preload(settings)
    server = next((service for service in services if service.name == "prefect"), None)
    while server and not server.healthy():
        if over.wait(0.1):
            return
    names = asyncio.run(register.register(settings))
    progress(f"{len(names)} deployments are registered")


def register_again(settings: Settings, progress: Progress) -> None:
    """Register the deployments that Prefect lacks, such as one that was deleted, or of a package installed since.

    Raises:
        UnavailableError: the API does not answer any more.
        SettingsError: a flow is wrong, or the server refused it.
    """
    from holdfast.deployments.worker import manifest, register  # noqa: PLC0415  (seldom needed)

    wanted = {each.name for each in manifest.all_deployments()}
    there = _registered(settings, wanted)
    if there is None or not (lacks := sorted(wanted - there)):
        return
    asyncio.run(register.register(settings))
    progress(f"registered again: {join_names(lacks)}")


def _registered(settings: Settings, names: Collection[str]) -> set[str] | None:
    """Return the deployments of these names that Prefect has; None: it gives no answer."""
    user, _, password = secret.prefect_auth(settings).partition(":")
    try:
        answer = httpx.post(
            f"{settings.prefect_api}/deployments/filter",
            json={"deployments": {"name": {"any_": sorted(names)}}},
            auth=(user, password) if user else None,
            timeout=_ASKED_S,
            trust_env=False,
            **tls.of(settings).http(),
        )
        answer.raise_for_status()
        return {str(each["name"]) for each in answer.json()}
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None


def _why(missing: Sequence[Service], home: Path, how: str) -> str:
    """Return what is known of the first service that is missing, and the names of the others."""
    service, log = missing[0], missing[0].log(home)
    process = pidfile.running(home, service.name)
    state = "its process does not run"
    if process is not None:
        state = f"its process {process.pid} runs, and does not answer (a host short of processors or memory?)"
    others = f" Nor did {join_names([each.says for each in missing[1:]])}." if missing[1:] else ""
    try:
        last = "\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
    except OSError:
        last = "  (no log)"
    return f"{service.says} did not come up{how}; {state}.{others} End of {log}:\n{last}"
