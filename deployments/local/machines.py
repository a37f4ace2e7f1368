"""Machines of the embedded default: have as many as wanted, or none."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

from holdfast import drivers, secret, tls
from holdfast.drivers.base import Driver
from holdfast.errors import UnavailableError, UnknownError
from holdfast.models.job import JobState
from holdfast.models.machine import Machine, MachineState
from holdfast.paths import machine_dir
from holdfast.policies.counted import counted
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger

RETIRED_AT_ONCE = 16
_LAST_LINES = 15
_LOOKS_APART = 10
"""Between two looks at how the engine sees machines that start: so many times what a look took."""
_OVER = (JobState.STOPPED, JobState.FAILED, JobState.DONE)


def have(
    settings: Settings,
    wanted: int,
    progress: Callable[[str], None],
    over: threading.Event,
    started: list[str] | None = None,
) -> None:
    """Provision what is missing to ``wanted`` machines, and wait until those have registered.

    Ends early, without a word, when ``over`` is set. ``started`` takes the names of the new ones.

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
    if started is not None:
        started.extend(sorted(new))
    progress(counted(len(new), "machine is starting", "machines are starting"))
    until = time.monotonic() + 2 * settings.up_s
    headers = {"Authorization": secret.of(settings).header}
    certified = tls.of(settings).http()
    with httpx.Client(headers=headers, trust_env=False, **certified) as http:
        dead, next_look = set[str](), 0.0
        while missing := new - _ready(known := _known(http, settings.gateways)):
            if (begun := time.monotonic()) >= next_look:
                dead = missing - {machine.name for machine in driver.machines() if machine.alive}
                # An engine that takes long has many machines, or others to serve too.
                next_look = time.monotonic() + _LOOKS_APART * (time.monotonic() - begun)
            if dead or time.monotonic() > until:
                raise UnavailableError(_why(settings, driver, min(dead or missing), known))
            if over.wait(0.1):
                return
    refused = [known[name] for name in sorted(new) if known[name].state is MachineState.CORDONED]
    progress(counted(len(new) - len(refused), "machine is ready", "machines are ready"))
    for each in refused:
        progress(f"machine {each.name} is out of service: {each.cordon_reason or 'no reason given'}")


def take_back(settings: Settings, names: Sequence[str]) -> None:
    """End these machines, which an ``up`` that failed had started; the ledger forgets them. Jobs stay as they are.

    Raises:
        HoldfastError: one is left.
    """
    if not names:
        return
    driver = drivers.from_settings(settings)
    with ThreadPoolExecutor(RETIRED_AT_ONCE) as beside:
        list(beside.map(driver.retire, names))
    ledger = Ledger(settings.database)
    try:
        for name in names:
            with contextlib.suppress(UnknownError):
                ledger.remove_machine(name)
    finally:
        ledger.close()


def retire_all(settings: Settings, driver: Driver) -> None:
    """End every machine; the ledger forgets them, and notes jobs that ran on them as stopped."""
    with ThreadPoolExecutor(RETIRED_AT_ONCE) as beside:
        list(beside.map(driver.retire, [machine.name for machine in driver.machines()]))
    ledger = Ledger(settings.database)
    try:
        for job in ledger.jobs():
            if job.state not in _OVER:
                ledger.set_job(job.name, state=JobState.STOPPED, done_at=time.time())
        for known in ledger.machines():
            with contextlib.suppress(UnknownError):
                ledger.remove_machine(known.name)
    finally:
        ledger.close()


def _known(http: httpx.Client, gateways: Sequence[str]) -> dict[str, Machine]:
    """Return the machines as the leading gateway reports them; the others refuse, or are away."""
    for url in gateways:
        with contextlib.suppress(httpx.HTTPError):
            answer = http.get(f"{url}/v1/machines")
            answer.raise_for_status()
            return {each["name"]: Machine.model_validate(each) for each in answer.json()}
    return {}


def _ready(known: Mapping[str, Machine]) -> set[str]:
    unready = (MachineState.PROVISIONING, MachineState.GONE)
    return {name for name, machine in known.items() if machine.state not in unready}


def _why(settings: Settings, driver: Driver, name: str, known: Mapping[str, Machine]) -> str:
    if name in known and known[name].state is MachineState.PROVISIONING and known[name].address:
        return (
            f"machine {name} registered, and was not admitted within {2 * settings.up_s:g} s: the newest run of "
            "`admit-machine` in the Prefect UI says what its delivery checks found."
        )
    if settings.driver != "local":
        detail = next((each.detail for each in driver.machines() if each.name == name), "") or "not listed"
        return (
            f"machine {name} did not register within {2 * settings.up_s:g} s; {driver.name} says: {detail}."
        )
    log = machine_dir(settings.home, name) / "agent.log"
    try:
        last = "\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
    except OSError:
        last = "  (no log)"
    return f"machine {name} did not register as a standby. End of {log}:\n{last}"
