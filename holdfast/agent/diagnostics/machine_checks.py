"""Stop-time checks of one machine (arXiv 2509.16293, section 4): inspection, all-to-all inside, all-gather with a
neighbour. Collectives run in fresh processes, so that a check cannot harm the agent and a stuck one is killed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil

from holdfast.agent.diagnostics import (
    interfaces,
    plugged,
    vendor,
)
from holdfast.agent.diagnostics.check_part import CheckOutcome, CheckPart
from holdfast.agent.diagnostics.check_process import CHECKS, FindFn
from holdfast.agent.diagnostics.machine_state import (
    GpuStates,
    NvmlSettings,
    put_back,
    visible_gpus,
    without_room,
)
from holdfast.agent.diagnostics.warm_checks import Bench, Forked, ForkFn
from holdfast.agent.inspection import Inspector
from holdfast.errors import SettingsError
from holdfast.models.agent import Check, Diagnose
from holdfast.models.alert import Finding
from holdfast.paths import ENV_MACHINE_DIR

_POLL_S = 0.008
# A process that failed leaves the others waiting: this long for them to notice it themselves.
_GRACE_S = 0.3
# The part of the command's time that is kept for killing and reporting.
_MARGIN_S = 1.0
DRIVER_S = 10.0
"""Longest wait for the GPUs' driver, which takes seconds for its first answer where it was not in use."""
# Of its own: what the driver never answers must not take the threads of the agent's other work.
_DRIVER = ThreadPoolExecutor(2, thread_name_prefix="gpu-driver")
Answer = TypeVar("Answer")


async def run_check(
    command: Diagnose,
    fork: ForkFn,
    *,
    machine: str = "",
    inspector: Inspector | None = None,
    bench: Bench | None = None,
    beside: bool = False,
) -> list[Finding]:
    """Run one check; ``machine`` (default: from the environment) is the machine that the findings are about.

    ``fork(target, args)`` starts ``target(*args)`` in a new process; it may block and is called in a thread.
    With a ``bench`` the processes of a check that went well stay a moment for the next one. ``beside``: a job trains
    on this machine; a check that its GPUs have no room for is not made, since either could fail for lack of memory.
    A failing check is a finding, not an exception. ``sure`` only where no other machine can be the cause.

    Raises:
        SettingsError: the command lacks what its check needs.
    """
    began = time.perf_counter()
    machine = machine or Path(os.environ.get(ENV_MACHINE_DIR, "this machine")).name
    match command.check:
        case Check.INSPECT if inspector is None:
            raise SettingsError("diagnose: check = 'inspect' needs the agent's inspector.")
        case Check.INSPECT if inspector is not None:
            return await inspector.inspect()
        case Check.VENDOR:
            return await _restoring(machine, vendor.check(machine, _limit(command.timeout_s)))
        case Check.MATMUL | Check.PCIE | Check.BITWISE:
            check = _in_processes(command, machine, bench or Bench(fork), beside, began)
            return await _restoring(machine, check)
        case Check.NIC:
            return await interfaces.check(machine, _limit(command.timeout_s))
        case Check.FLIGHT_RECORDER:
            raise SettingsError("diagnose: check = 'flight_recorder' has a request of its own (/v1/flight).")
    if command.check not in CHECKS:
        return await plugged.diagnose(command, machine)
    return await _in_processes(command, machine, bench or Bench(fork), beside, began)


async def _restoring(machine: str, check: Awaitable[list[Finding]]) -> list[Finding]:
    """Return the findings of a check and of its changes to the machine's settings; these are reverted."""
    settings = NvmlSettings()
    before: GpuStates | None = await _of_driver(settings.read, None)
    found = await check
    if before is None:
        return found
    left: list[Finding] = await _of_driver(partial(put_back, machine, settings, before), list[Finding]())
    return [*found, *left]


async def _of_driver(ask: Callable[[], Answer], otherwise: Answer) -> Answer:
    """Return an answer of the GPUs' driver, or ``otherwise`` when it gives none in time: it may hang with a GPU."""
    asked = asyncio.get_running_loop().run_in_executor(_DRIVER, ask)
    try:
        return await asyncio.wait_for(asked, DRIVER_S)
    except TimeoutError:
        return otherwise


async def _in_processes(
    command: Diagnose, machine: str, bench: Bench, beside: bool, began: float
) -> list[Finding]:
    """Run a check that takes processes: fresh ones, or ones whose last check succeeded just before.

    ``began``: when the command came. What the driver took of its time is not there for the processes: the caller waits
    no longer for the findings.
    """
    started = time.perf_counter()
    with_peer = command.check == Check.ALL_GATHER
    # Of a machine that serves a job some GPUs may be others': a role's replicas have theirs.
    gpus = await _of_driver(visible_gpus, 0) if command.whole else 0
    parts = [_pair_part(command, machine)] if with_peer else _own_parts(command, gpus)
    # The peer of a pair would wait for it.
    needs_room = beside and not with_peer and command.check != Check.DISK
    room = partial(without_room, [part.rank for part in parts])
    if needs_room and (why := await _of_driver(room, "")):
        detail = f"not tested: {why}, beside a job"
        return [Finding(check=command.check, machine=machine, ok=True, detail=detail)]
    folder = Path(tempfile.mkdtemp(prefix="holdfast-check-"))
    try:
        parts = [replace(part, folder=str(folder)) for part in parts]
        load = Load()
        left_s = max(_MARGIN_S, command.timeout_s - (time.perf_counter() - began))
        outcomes = await _run(parts, CHECKS[command.check], bench, left_s)
        own_s = sum(outcome.cpu_s for outcome in outcomes.values())
        busy = load.of_others(own_s) if any(outcome.host for outcome in outcomes.values()) else 0.0
        busy = max([busy, *(outcome.busy for outcome in outcomes.values())])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    judge = _JUDGES.get(command.check, _judge_computed)
    seconds = time.perf_counter() - started
    update = {"seconds": seconds, "busy": busy}
    return [found.model_copy(update=update) for found in judge(command, machine, outcomes)]


class Load:
    """Load of the host's processors from now on."""

    def __init__(self) -> None:
        self._before = psutil.cpu_times()
        self._agent_s = time.process_time()

    def of_others(self, own_s: float) -> float:
        """Return the processors' share that others used since: all but ``own_s`` (seconds) and this process's own."""
        now = psutil.cpu_times()
        spent = [after - before for after, before in zip(now, self._before, strict=True)]
        idle = (
            now.idle - self._before.idle + getattr(now, "iowait", 0.0) - getattr(self._before, "iowait", 0.0)
        )
        if (total := sum(spent)) <= 0:
            return 0.0
        own_s += time.process_time() - self._agent_s
        return max(0.0, 1 - (idle + own_s) / total)


def _own_parts(command: Diagnose, gpus: int) -> list[CheckPart]:
    """Return a part for each process that is asked for; more where ``gpus`` are more."""
    size = max(2 if command.check == Check.ALL_TO_ALL else 1, command.processes, gpus)
    size = 1 if command.check == Check.DISK else size
    limit = _limit(command.timeout_s)
    measure = command.measure
    disk = os.environ.get(ENV_MACHINE_DIR, "")
    return [
        CheckPart(
            rank=rank, size=size, folder="", timeout_s=limit, measure=measure, disk=disk, env=command.env
        )
        for rank in range(size)
    ]


def _pair_part(command: Diagnose, machine: str) -> CheckPart:
    if command.rendezvous is None or not command.peer or command.process_rank not in (0, 1):
        raise SettingsError(
            f"diagnose: all_gather needs peer (got {command.peer!r}), rendezvous (got {command.rendezvous}) "
            f"and process_rank 0 or 1 (got {command.process_rank})."
        )
    pair = "-".join(sorted((machine, command.peer)))
    return CheckPart(
        rank=command.process_rank,
        size=2,
        folder="",
        timeout_s=_limit(command.timeout_s),
        host=command.rendezvous.host,
        port=command.rendezvous.port,
        prefix=f"diagnose/{command.job}/{command.epoch}/{pair}",
        measure=command.measure,
        env=command.env,
        gpus=0 if command.whole else command.processes,
    )


def _limit(timeout_s: float) -> float:
    return max(timeout_s - _MARGIN_S, timeout_s / 2)


async def _run(
    parts: list[CheckPart], find: FindFn, bench: Bench, timeout_s: float
) -> dict[int, CheckOutcome]:
    """Return outcomes by process; a process without one is killed."""
    deadline = time.monotonic() + timeout_s
    running: dict[int, Forked] = {}
    orders: dict[int, Path] = {}
    alone = any(part.env for part in parts)
    outcomes: dict[int, CheckOutcome] = {}
    try:
        for part in parts:
            running[part.rank], orders[part.rank] = await asyncio.to_thread(bench.start, find, part)
        while len(outcomes) < len(parts) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
            for part in parts:
                if part.rank not in outcomes and (found := _outcome(part, running[part.rank])):
                    outcomes[part.rank] = found
            if any(outcome.error for outcome in outcomes.values()):
                deadline = min(deadline, time.monotonic() + _GRACE_S)
    finally:
        for rank, process in running.items():
            # A process with an outcome leaves by itself: its peer may still be reading from it.
            if rank in outcomes and not outcomes[rank].error and not alone:
                bench.keep(process, orders[rank])
                continue
            if rank not in outcomes and process.exitcode is None:
                process.kill()
            bench.leave(process)
    late = CheckOutcome(error=f"not finished within {timeout_s:.1f} s, or stopped because another failed")
    return {part.rank: outcomes.get(part.rank, late) for part in parts}


def _outcome(part: CheckPart, process: Forked) -> CheckOutcome | None:
    """Return the outcome of the process; None while it runs."""
    code = process.exitcode  # read before the file: a process that ended has left all that it will leave
    try:
        return CheckOutcome.read(part.outcome_path)
    except (OSError, ValueError):
        if code is None:
            return None
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    return CheckOutcome(error=f"its process ended without an outcome ({how})")


def _judge_own(command: Diagnose, machine: str, outcomes: Mapping[int, CheckOutcome]) -> list[Finding]:
    """Judge one machine: damaged bytes inside it are its own fault; an error or delay may have other causes."""
    size = len(outcomes)
    found = [
        Finding(
            check=command.check,
            machine=machine,
            ok=False,
            sure=True,
            detail=f"{count} bytes from process {source} to process {rank} of {size} arrived damaged",
        )
        for rank, outcome in outcomes.items()
        for source, count in outcome.wrong_bytes.items()
    ]
    found += [
        Finding(check=command.check, machine=machine, ok=False, detail=f"process {rank}: {outcome.error}")
        for rank, outcome in outcomes.items()
        if outcome.error
    ]
    if found:
        return found
    slowest = min(outcomes.values(), key=lambda outcome: outcome.value or 0.0)
    detail = f"{size} processes, {slowest.backend}{_rate(slowest)}{_way(command, slowest)}"
    kind = f"{slowest.backend}, {size} processes{_kind_of_way(slowest)}"
    return [
        Finding(check=command.check, machine=machine, ok=True, detail=detail, kind=kind, **_value(slowest))
    ]


def _rate(outcome: CheckOutcome) -> str:
    return "" if outcome.value is None else f", {outcome.value:.4g} {outcome.unit}"


def _by_gpu(outcome: CheckOutcome) -> str:
    return f" (GPU {outcome.gpu})" if outcome.turns > 1 else ""


def _turns(outcome: CheckOutcome) -> str:
    if outcome.of_turns < 2:
        return ""
    least = f", least by GPU {outcome.gpu}" if outcome.value is not None and outcome.turns > 1 else ""
    return f", {outcome.turns} of {outcome.of_turns} GPUs in turn{least}"


def _kind_of_turns(outcome: CheckOutcome) -> str:
    return f", {outcome.turns} GPUs in turn" if outcome.turns > 1 else ""


def _way(command: Diagnose, outcome: CheckOutcome) -> str:
    """Return whether the collectives went the job's way, where it has one of its own."""
    if not command.env:
        return ""
    names = ", ".join(command.env)
    return (
        f", with the job's {names}"
        if outcome.environment
        else f", without the job's {names}: the peer has others"
    )


def _kind_of_way(outcome: CheckOutcome) -> str:
    """Return what keeps a value from being compared with those of another way."""
    return f", environment {outcome.environment}" if outcome.environment else ""


def _value(outcome: CheckOutcome) -> dict[str, Any]:
    """Return the measurement of a process, for a finding."""
    return {"value": outcome.value, "unit": outcome.unit, "repeats": outcome.repeats}


def _judge_pair(command: Diagnose, machine: str, outcomes: Mapping[int, CheckOutcome]) -> list[Finding]:
    """Judge a pair: damaged or missing bytes from the peer may be either side's fault; own bytes are our own."""
    outcome = outcomes[command.process_rank]
    own = outcome.wrong_bytes.get(command.process_rank, 0)
    theirs = outcome.wrong_bytes.get(1 - command.process_rank, 0)
    found = []
    if own:
        detail = f"{own} of its own bytes are damaged after an exchange with {command.peer}{_by_gpu(outcome)}"
        found.append(Finding(check=command.check, machine=machine, ok=False, sure=True, detail=detail))
    problem = f"{theirs} bytes arrived damaged{_by_gpu(outcome)}" if theirs else outcome.error
    if problem or not found:
        found.append(
            Finding(
                check=command.check,
                machine=machine,
                peer=command.peer,
                ok=not problem,
                detail=problem
                or f"{outcome.backend}{_rate(outcome)}{_turns(outcome)}{_way(command, outcome)}",
                kind=f"{outcome.backend}{_kind_of_turns(outcome)}{_kind_of_way(outcome)}",
                **_value(outcome),
            )
        )
    return found


def _judge_computed(command: Diagnose, machine: str, outcomes: Mapping[int, CheckOutcome]) -> list[Finding]:
    """Judge results: a wrong product is surely the machine's own fault; values and digests are compared elsewhere."""
    found = []
    for rank, outcome in sorted(outcomes.items()):
        alone = Finding(
            check=command.check,
            machine=machine,
            rank=rank,
            ok=not (outcome.wrong or outcome.error),
            sure=bool(outcome.wrong),
            detail=f"process {rank}: {_computed(outcome)}",
            **_value(outcome),
            digest=outcome.digest,
            kind=outcome.kind,
        )
        found.append(alone)
        if outcome.together:
            place = f"process {rank} of {len(outcomes)} together"
            tested = " " not in outcome.together
            more = {
                "detail": f"{place}: {outcome.together}",
                "digest": outcome.together if tested else "",
                "kind": f"{outcome.kind}, {place}",
            }
            found.append(alone.model_copy(update=more))
    return found


def _computed(outcome: CheckOutcome) -> str:
    if outcome.untested:
        return f"not tested: {outcome.untested}"
    return outcome.wrong or outcome.error or outcome.digest or f"right{_rate(outcome)}"


_JUDGES: dict[str, Callable[[Diagnose, str, Mapping[int, CheckOutcome]], list[Finding]]] = {
    Check.ALL_TO_ALL: _judge_own,
    Check.ALL_GATHER: _judge_pair,
}
