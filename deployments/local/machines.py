"""Machines of the embedded default: have as many as wanted, or none."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import httpx

from holdfast import drivers, secret
from holdfast.drivers.base import Driver
from holdfast.errors import UnavailableError, UnknownError
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState
from holdfast.paths import machine_dir
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger

REGISTERED_S = 120.0
"""How long new machines may take to start their fork servers, check themselves and register."""
_LAST_LINES = 15
_OVER = (JobState.STOPPED, JobState.FAILED, JobState.DONE)


def have(settings: Settings, wanted: int, progress: Callable[[str], None], over: threading.Event) -> None:
    """Provision what is missing to ``wanted`` machines, and wait until those have registered.

    Ends early, without a word, when ``over`` is set.

    Raises:
        UnavailableError: one did not register in time (with the last lines of its log).
    """
    if wanted == 0:
        return
    driver = drivers.from_settings(settings)
    alive = [machine.name for machine in driver.machines() if machine.alive]
    if len(alive) >= wanted:
        return
    new = set(driver.provision(wanted - len(alive)))
    progress(f"{len(new)} machines are starting")
    until = time.monotonic() + REGISTERED_S
    headers = {"Authorization": f"Bearer {secret.read(settings.secret_path)}"}
    with httpx.Client(base_url=settings.gateway, headers=headers, trust_env=False) as http:
        while missing := new - _registered(http):
            dead = missing - {machine.name for machine in driver.machines() if machine.alive}
            if dead or time.monotonic() > until:
                raise UnavailableError(_why(settings, min(dead or missing)))
            if over.wait(0.1):
                return
    progress(f"{len(new)} machines are ready")


def retire_all(settings: Settings, driver: Driver) -> None:
    """End every machine; the ledger forgets them, and notes jobs that ran on them as stopped."""
    for machine in driver.machines():
        driver.retire(machine.name)
    ledger = Ledger(settings.database)
    try:
        for job in ledger.jobs():
            if job.state not in _OVER:
                ledger.set_job(job.name, state=JobState.STOPPED)
        for known in ledger.machines():
            with contextlib.suppress(UnknownError):
                ledger.remove_machine(known.name)
    finally:
        ledger.close()


def _registered(http: httpx.Client) -> set[str]:
    try:
        answer = http.get("/v1/machines")
        answer.raise_for_status()
    except httpx.HTTPError:
        return set()
    unready = (MachineState.PROVISIONING, MachineState.GONE)
    return {machine["name"] for machine in answer.json() if machine["state"] not in unready}


def _why(settings: Settings, name: str) -> str:
    log = machine_dir(settings.home, name) / "agent.log"
    try:
        last = "\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
    except OSError:
        last = "  (no log)"
    return f"machine {name} did not register as a standby. End of {log}:\n{last}"
