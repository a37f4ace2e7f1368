"""Acts of each step of a repair, and how their success is verified. All of them are safe to repeat."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx

from holdfast.clock import Clock
from holdfast.commands import Ended, run
from holdfast.drivers.base import NamesNodes, Reboots, meant
from holdfast.errors import HoldfastError, ReplacedUnitError
from holdfast.models.alert import Verdict
from holdfast.models.base import Frozen
from holdfast.models.machine import Machine, MachineState
from holdfast.models.repair import Repair, Step, StepState
from holdfast.operations.context import Context
from holdfast.policies.classify.dcgm_diag import json_in, judge, tests_in
from holdfast.policies.config.repair_policy import RepairPolicy
from holdfast.policies.diagnose import verdicts
from holdfast.tasks import standby_checks, tools

_NOWHERE = "the host that the machine was on is not known"
_POLL_S = 1.0
_BOOT = ("cat", "/proc/sys/kernel/random/boot_id", "/proc/uptime")
_YOUNGER_S = 5.0
"""Allowed between two clocks where a boot is known by its age alone."""
_ASK_S = 15.0
_DIAGNOSIS_KEPT = 16 << 20
"""Bytes: the answer is one document, of all GPUs."""


class StepResult(Frozen):
    """The result of a step."""

    state: StepState
    detail: str = ""
    incarnation: str | None = None
    """Incarnation of the machine that returned."""


def worked(detail: str) -> StepResult:
    """Return the result of a step that was seen to work."""
    return StepResult(state=StepState.WORKED, detail=detail)


def failed(detail: str) -> StepResult:
    """Return the result of a step that did not work, or was not seen to."""
    return StepResult(state=StepState.FAILED, detail=detail)


def skipped(detail: str) -> StepResult:
    """Return the result of a step that cannot be done here."""
    return StepResult(state=StepState.SKIPPED, detail=detail)


async def reset_gpu(ctx: Context, repair: Repair, at_most_s: float) -> StepResult:
    """Reset all GPUs of the machine. Persistence mode holds them in use, so it is off meanwhile."""
    policy = ctx.policy.repair
    if why := _out_of_reach(ctx, policy):
        return skipped(why)
    if not (node := await _node_of(ctx, repair.machine, policy.shell)):
        return skipped(_NOWHERE)
    left = _Left(ctx.clock, at_most_s)

    async def smi(*arguments: str) -> Ended:
        command = ("nvidia-smi", *arguments)
        return await tools.on_machine(policy.shell, repair.machine, node, command, left.seconds)

    asked = await smi("--query-gpu=persistence_mode", "--format=csv,noheader")
    if asked.missing:
        return skipped(f"nvidia-smi is not installed ({asked.message})")
    persistent = "Enabled" in asked.out
    if persistent:
        await smi("--persistence-mode=0")
    done = await smi("--gpu-reset")
    if persistent:
        await smi("--persistence-mode=1")
    if not done.ok:
        return failed(f"nvidia-smi --gpu-reset: {done.message}")
    seen = await smi("--query-gpu=name", "--format=csv,noheader")
    if not seen.ok or not seen.out.strip():
        return failed(f"no GPU answers after the reset: {seen.message}")
    return worked(f"{len(seen.out.strip().splitlines())} GPUs answer after the reset")


async def restart_machine(ctx: Context, repair: Repair, at_most_s: float) -> StepResult:
    """Restart the machine by the site's command, else through the driver; it counts when it was seen to boot."""
    policy = ctx.policy.repair
    if policy.restart_command:
        return await _by_command(ctx, policy, repair, at_most_s)
    if not isinstance(ctx.driver, Reboots):
        return skipped(f"the {ctx.driver.name} driver restarts no machine: set repair.restart_command")
    reboot, why = ctx.driver.reboot, f"repair {repair.id}: {repair.why}"
    try:
        detail = await asyncio.to_thread(reboot, repair.machine, why, repair.incarnation, at_most_s)
    except ReplacedUnitError:
        raise
    except HoldfastError as error:
        return failed(str(error))
    return worked(detail)


async def _by_command(ctx: Context, policy: RepairPolicy, repair: Repair, at_most_s: float) -> StepResult:
    left = _Left(ctx.clock, at_most_s)
    if not (node := await _node_of(ctx, repair.machine, policy.restart_command, policy.shell)):
        return skipped(_NOWHERE)

    async def boot() -> _Boot:
        answer = await tools.on_machine(policy.shell, repair.machine, node, _BOOT, min(_ASK_S, left.seconds))
        return _boot(answer.out) if answer.ok else _Boot()

    before = (await boot()).id if policy.shell else ""
    began = ctx.clock.monotonic()
    command = tools.words("repair.restart_command", policy.restart_command, repair.machine, node)
    done = await run(command, left.seconds)
    if not done.ok:
        return failed(f"{command[0]}: {done.message}")
    if not policy.shell:
        return worked(f"{command[0]} reported a restart; not verified, as repair.shell is empty")
    while not (now := await boot()).is_since(before, ctx.clock.monotonic() - began):
        if left.seconds <= _POLL_S:
            return failed(f"{command[0]} reported a restart, but no new boot was seen within {at_most_s:g} s")
        await ctx.clock.sleep(_POLL_S)
    return worked(f"boot {now.id}, before {before or 'it did not answer'}")


class _Boot(Frozen):
    """One boot of a machine, as it reports it."""

    id: str = ""
    """Empty: it did not answer."""
    up_s: float = float("inf")

    def is_since(self, before: str, ago_s: float) -> bool:
        """Return whether it began after ``before`` was seen, ``ago_s`` ago; empty: nothing was, so its age counts."""
        return bool(self.id) and (self.id != before if before else self.up_s < ago_s + _YOUNGER_S)


def _boot(output: str) -> _Boot:
    words = output.split()
    try:
        return _Boot(id=words[0], up_s=float(words[1]) if len(words) > 1 else float("inf"))
    except (IndexError, ValueError):
        return _Boot()


async def diagnose(ctx: Context, repair: Repair, at_most_s: float) -> StepResult:
    """Run the vendor's diagnosis at the policy's level; one that is not installed is no evidence either way."""
    policy = ctx.policy.repair
    if why := _out_of_reach(ctx, policy) if policy.diagnose else "repair.diagnose is empty":
        return skipped(f"not tested: {why}")
    if not (node := await _node_of(ctx, repair.machine, policy.shell)):
        return skipped(f"not tested: {_NOWHERE}")
    command = ("dcgmi", "diag", "--run", policy.diagnose, "--json")
    done = await tools.on_machine(
        policy.shell, repair.machine, node, command, at_most_s, kept=_DIAGNOSIS_KEPT
    )
    if done.missing:
        return skipped(f"not tested: dcgmi is not installed ({done.message})")
    return _judged(policy.diagnose, repair.machine, done)


def _judged(level: str, machine: str, done: Ended) -> StepResult:
    """Judge by the tests' severity, as the machine checks do; old versions end with 0 whatever they found.

    Output without tests is a failure of the tool. A failure that proves no broken GPU (settings, a GPU in use) is no
    evidence either way: the delivery checks decide.
    """
    command, report = f"dcgmi diag --run {level}", json_in(done.out) if done.status is not None else None
    found = judge(machine, report) if report is not None else []
    if sure := [one.detail for one in found if one.sure]:
        return failed(f"{command}: {'; '.join(sure)}"[:500])
    if found and all(one.ok for one in found):
        return worked(f"{command} passed") if done.ok else failed(f"{command}: {done.message}")
    if not tests_in(report):
        return failed(f"{command}: {done.message}")
    return skipped(f"{command} proves no broken GPU: {'; '.join(one.detail for one in found)}"[:500])


async def take_back(ctx: Context, repair: Repair, at_most_s: float) -> StepResult:
    """Have the driver start the machine again; its agent registers, and waits."""
    left, before = _Left(ctx.clock, at_most_s), ctx.ledger.machine(repair.machine).incarnation
    known = before if before != repair.incarnation else ""
    if not known:
        try:
            release = ctx.driver.release
            await asyncio.to_thread(release, *meant(release, repair.machine, repair.incarnation))
        except HoldfastError as error:
            return failed(str(error))
    while True:
        machine = ctx.ledger.machine(repair.machine)
        if machine.state is MachineState.CORDONED:
            return failed(f"it is cordoned again: {machine.cordon_reason}")
        if machine.incarnation != repair.incarnation and await _answers(ctx, machine):
            return worked("its agent registered").model_copy(update={"incarnation": machine.incarnation})
        if left.seconds <= 0:
            return failed(f"its agent did not register within {at_most_s:g} s")
        await ctx.clock.sleep(_POLL_S)


async def check(ctx: Context, repair: Repair, at_most_s: float) -> StepResult:
    """Repeat the delivery checks until the burn-in is over; the first that fails ends it."""
    burn_in_s, begun, rounds = ctx.policy.repair.burn_in_s, ctx.clock.monotonic(), 0
    while True:
        rounds += 1
        verdict = await _one_round(ctx, repair)
        if why := _against(verdict, repair.machine):
            return failed(f"round {rounds}: {why}"[:500])
        over_s = ctx.clock.monotonic() - begun
        if over_s >= burn_in_s:
            return worked(f"{rounds} rounds of delivery checks passed in {over_s:.0f} s")
        if over_s >= at_most_s:
            return failed(f"{rounds} rounds took {over_s:.0f} s, at most {at_most_s:g} s")


async def _one_round(ctx: Context, repair: Repair) -> Verdict:
    machine = ctx.ledger.machine(repair.machine)
    partners = ctx.ledger.machines(state=MachineState.STANDBY)[: standby_checks.PARTNERS]
    name = f"repair-{repair.id}"
    tiers = standby_checks.Admission().tiers
    return (await standby_checks.check_machines(ctx, name, [machine], tiers, partners)).verdict


def _against(verdict: Verdict, machine: str) -> str:
    """Return a round's findings against the machine; a link that fails with one partner alone is the partner's."""
    mine = [found for found in verdict.findings if found.machine == machine and not found.ok]
    alone = [found for found in mine if found.peer is None]
    pairs = verdicts.pair_results(verdict.findings).get(machine, {})
    if machine in verdict.suspects or alone or (pairs and not any(pairs.values())):
        return "; ".join(f"{found.check}: {found.detail or 'failed'}" for found in mine) or "; ".join(
            verdict.evidence
        )
    return ""


async def ticket(ctx: Context, repair: Repair, why: str, at_most_s: float) -> StepResult:
    """Ask a person, through the site's webhook; the same ticket sent again carries the same key."""
    address = ctx.settings.ticket_webhook.get_secret_value()
    if not address:
        return worked(f"{why} (no HOLDFAST_TICKET_WEBHOOK: the run says so)")
    body = {
        "text": f"Machine {repair.machine} needs manual repair: {why}",
        "machine": repair.machine,
        "incident": repair.incident_id,
        "repair": repair.id,
        "why": why,
        "steps": [step.model_dump(mode="json") for step in repair.steps],
    }
    try:
        async with httpx.AsyncClient(timeout=at_most_s) as http:
            answer = await http.post(
                address, json=body, headers={"Idempotency-Key": f"holdfast-repair-{repair.id}"}
            )
            answer.raise_for_status()
    except httpx.HTTPStatusError as error:
        return failed(f"the ticket was refused: HTTP {error.response.status_code}")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        # Not the address: it may hold a secret.
        return failed(f"the ticket did not arrive: {type(error).__name__}")
    return worked(why)


ACTS: dict[Step, Callable[[Context, Repair, float], Awaitable[StepResult]]] = {
    Step.RESET_GPU: reset_gpu,
    Step.RESTART_MACHINE: restart_machine,
    Step.DIAGNOSE: diagnose,
    Step.RETURN: take_back,
    Step.CHECK: check,
}


class _Left:
    """The remaining time of a step, by a clock that is never set."""

    def __init__(self, clock: Clock, at_most_s: float) -> None:
        self._clock, self._until = clock, clock.monotonic() + at_most_s

    @property
    def seconds(self) -> float:
        return max(0.0, self._until - self._clock.monotonic())


def _out_of_reach(ctx: Context, policy: RepairPolicy) -> str:
    """Return why no command runs on machines; empty: they do."""
    if policy.shell or ctx.driver.name == "local":
        return ""
    return f"repair.shell is empty, so nothing can be run on machines of the {ctx.driver.name} driver"


async def _node_of(ctx: Context, machine: str, *commands: str) -> str:
    """Return the machine's host, for those of ``commands`` that name it; empty: it is not known, so none may be run.

    Where the driver names machines after their hosts, it is the machine's name.
    """
    if not isinstance(ctx.driver, NamesNodes) or not any(tools.NODE in command for command in commands):
        return machine
    return await asyncio.to_thread(ctx.driver.node_of, machine)


async def _answers(ctx: Context, machine: Machine) -> bool:
    try:
        return (await ctx.agent(machine).state()).incarnation == machine.incarnation
    except HoldfastError:
        return False
