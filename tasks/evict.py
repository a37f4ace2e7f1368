"""Step: take machines out of service, within the limits, and see that they are out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefect import task
from prefect.logging import get_run_logger
from prefect.runtime import task_run

from holdfast.models.alert import IncidentClass
from holdfast.models.history import AGAIN, Action, ActionState, machine_of
from holdfast.models.machine import MachineState, Scope
from holdfast.operations import evict as evicting
from holdfast.operations.fence import fence
from holdfast.policies.classify import sure_signs
from holdfast.policies.detect import silence
from holdfast.policies.escalate import by_hand, dead
from holdfast.policies.join_names import join_names
from holdfast.storage.ledger.evictions import UNCOUNTED
from holdfast.storage.ledger.one_view import one_view
from holdfast.tasks import late, returned
from holdfast.tasks.approve import ask_before_evicting
from holdfast.tasks.recovery_context import RecoveryContext

KNOWN_S = 1.0
"""Seconds within which the gateway has read in the ledger that a machine is being evicted."""


def _run_name() -> str:
    return f"evict {join_names(dict.fromkeys(task_run.parameters['machines']))}"


async def evict(
    case: RecoveryContext, machines: Sequence[str], reason: str, scope: Scope | None = None
) -> None:
    """Evict ``machines`` (fence, drain, verify gone, cordon); those that are out already are left alone.

    Machines that alerts which joined meanwhile surely accuse, or that people asked to evict, are evicted with them.

    Args:
        case: the incident.
        machines: their names.
        reason: for people.
        scope: jobs that the cordon keeps away; None: as in the class's ladder. The one that a person named goes before.

    Raises:
        LimitError: the breaker or a person forbids it; nothing was evicted, a human decides.
        RecoveryError: a machine still lives after its eviction.
    """
    scope = scope or case.ctx.policy.ladder.of(case.incident_class).scope
    asked: tuple[str, ...] | None = None
    # An answer may take hours, in which more machines fail.
    while asked != (machines := _with_late_ones(case, machines)):
        if not machines:
            return
        new = _new(case, machines)
        job, lost = case.job_now(), _dead(case)
        evicting.ask_breaker(case.ctx, job, new, case.incident_id, lost)
        await ask_before_evicting(case, new, scope, len(evicting.uncounted(case.ctx, job, new, lost)))
        asked = machines
    # A yes is about the life of a machine that was asked about.
    back = restarted_since(case)
    machines = tuple(name for name in machines if name not in back)
    await take_machines_out(case, machines, reason, scope)


@one_view()
def _with_late_ones(case: RecoveryContext, machines: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*machines, *late.roots(case), *late.asked(case))))


@one_view()
def restarted_since(case: RecoveryContext) -> set[str]:
    """Return the machines that are accused in a former life only.

    No check of this round found the present one bad, and no person wants it out.
    """
    actions, present = case.ctx.ledger.actions(case.incident_id), case.incarnations()
    back = returned.meanwhile(case).difference(late.asked(case))
    return {name for name in back if present.get(name) not in _lives_found_bad(actions, name)}


@task(task_run_name=_run_name)
async def take_machines_out(
    case: RecoveryContext, machines: Sequence[str], reason: str, scope: Scope
) -> None:
    """Evict those of ``machines`` that are not out already."""
    new, sure = _new(case, machines), late.roots(case)
    # A machine that surely fails is kept from every job, whatever class of incident it was found in.
    wide = case.ctx.policy.ladder.of(IncidentClass.MACHINE_FAULT).scope
    alerts = case.incident.alerts
    answers = [{"target": each.intent.get("target")} | each.result for each in case.done("approve")]
    scopes = {name: by_hand.scope(alerts, answers, name) or (wide if name in sure else scope) for name in new}
    own = _own_reasons(case) | late.asked(case) | sure
    free = evicting.uncounted(case.ctx, case.job_now(), new, _dead(case))
    acts = [_plan(case, name, own.get(name, reason), scopes[name], uncounted=name in free) for name in new]
    _begin(case, acts)
    for each in acts:
        get_run_logger().warning("evicting %s: %s", each.machine, each.reason)
    await asyncio.gather(*(_evict_one(case, act) for act in acts))


def _own_reasons(case: RecoveryContext) -> dict[str, str]:
    """Return why machines go that the incident was not opened for: its reasons are those of others."""
    unreached = {
        name for action in case.done("pause") for name in (action.result or {}).get("unreachable", ())
    }
    alerts = sure_signs.of_present(case.incident.alerts, case.incarnations())
    found = sure_signs.find(alerts, case.ctx.policy.classify)
    return {
        name: found.get(name, "it did not answer when the ranks of its job were stopped")
        for name in unreached.difference(case.accused)
    }


@one_view()
def _new(case: RecoveryContext, machines: Sequence[str]) -> list[str]:
    """Return those of ``machines`` that serve the job still, or again and are found bad in their present life.

    One that a person took out of its place is out already: there is nothing to ask the breaker about.
    """
    job, out = case.job_now(), returned.evicted(case)
    begun = {machine_of(action.key) for action in case.ctx.ledger.actions(case.incident_id, "evict")}
    gone = {each.name for each in case.machines_now() if each.state is MachineState.CORDONED}
    new = [name for name in dict.fromkeys(machines) if name in job.machines and name not in gone - begun]
    return [name for name in new if name not in out or _failed_again(case, name, out[name])]


def _failed_again(case: RecoveryContext, machine: str, before: str) -> bool:
    """Return whether a machine that was evicted in the life ``before`` came back, and failed again."""
    (now,) = case.ctx.ledger.machines_named([machine])
    if not before or now.job != case.job or now.incarnation == before:
        return False
    found = _lives_found_bad(case.ctx.ledger.actions(case.incident_id), machine)
    return now.incarnation in found or machine in late.roots(case)


@dataclass(frozen=True)
class _Eviction:
    """One machine to evict."""

    machine: str
    target: str
    """Of the action's key."""
    reason: str
    scope: Scope
    meant: str
    """The machine's incarnation."""

    uncounted: bool
    """Whether the breaker does not count it."""

    @property
    def intent(self) -> dict[str, Any]:
        known = {"reason": self.reason, "scope": self.scope.value, "incarnation": self.meant}
        return known | ({UNCOUNTED: True} if self.uncounted else {})


def _plan(case: RecoveryContext, machine: str, reason: str, scope: Scope, *, uncounted: bool) -> _Eviction:
    times = sum(machine_of(action.key) == machine for action in case.done("evict"))
    target = f"{machine}{AGAIN}{times + 1}" if times else machine
    return _Eviction(machine, target, reason, scope, _meant(case, machine), uncounted)


def _begin(case: RecoveryContext, acts: Sequence[_Eviction]) -> None:
    """Record all intents at once, unless the breaker forbids them by now: runs of other jobs may have begun some.

    Raises:
        LimitError: not now; the message names the time from which on.
    """
    if not acts:
        return
    may = evicting.breaker_of(case.ctx, case.job_now(), [act.machine for act in acts], _dead(case))
    intents = {f"evict:{act.target}": act.intent for act in acts}
    case.ledger.begin_evictions(case.incident_id, case.attempt, intents, may, case.lease)


async def _evict_one(case: RecoveryContext, act_on: _Eviction) -> None:
    ctx, machine, reason, scope, meant = case.ctx, act_on.machine, act_on.reason, act_on.scope, act_on.meant

    async def act() -> dict[str, Any]:
        silent = machine in _silent_at_pause(case)
        if not silent:
            fenced = await fence(ctx, [ctx.ledger.machine(machine)], case.job, case.broken_epoch)
            silent = machine in fenced.silent
        begun = ctx.clock.now()
        # The agent may be gone; the driver makes sure that nothing of the machine runs, where it can reach it.
        if restarted := await evicting.take_out_for(case.actor, machine, reason, scope, meant):
            # The accused machine is gone, and nothing accuses the present one of its name.
            get_run_logger().warning("%s", restarted)
            return {"reason": restarted, "scope": scope.value, "at": ctx.clock.now()}
        if silent:
            await _until_its_lease_is_over(case, machine, begun)
        return {"reason": reason, "scope": scope.value, "at": ctx.clock.now()}

    await case.once("evict", act_on.target, act_on.intent, act)


def _meant(case: RecoveryContext, machine: str) -> str:
    """Return the machine's incarnation that is accused: the present one of that name may be another, and innocent.

    As an earlier attempt meant it; as a person wants it out that serves now; as the newest finding against the machine
    looked at it, in this round; as the first alert about it names it (a later one may report that it restarted); else
    the one that this round first looked at.
    """
    actions, incident = case.ctx.ledger.actions(case.incident_id), case.incident
    begun = [each for each in actions if each.kind == "evict" and machine_of(each.key) == machine]
    out = {each.intent.get("incarnation") for each in begun if each.state is ActionState.DONE}
    meant = [str(life) for each in begun if (life := each.intent.get("incarnation"))]
    looks = _looks(actions, machine)
    found = _lives_found_bad(actions, machine)
    alerted = [
        alert.incarnation for alert in incident.alerts if alert.machine == machine and alert.incarnation
    ]
    wanted = [case.incarnations()[machine]] if machine in late.asked(case) else []
    known = [*meant, *wanted, *found, *alerted, *(life for life, _ in looks if life)]
    known = [life for life in known if life not in out]
    return str(known[0]) if known else case.ctx.ledger.machine(machine).incarnation


def _looks(actions: Sequence[Action], machine: str) -> list[tuple[str | None, Action]]:
    """Return the actions of this round, each with the machine's incarnation that it looked at."""
    return [
        (action.intent.get("incarnations", {}).get(machine), action) for action in _of_this_round(actions)
    ]


def _lives_found_bad(actions: Sequence[Action], machine: str) -> list[str]:
    """Return the machine's incarnations that a finding of this round accuses, the newest first."""
    return [
        life
        for life, action in reversed(_looks(actions, machine))
        if life and machine in _found_bad(action.result or {})
    ]


def _of_this_round(actions: Sequence[Action]) -> Sequence[Action]:
    """Return the actions since the incident was last taken up."""
    begins = [index for index, action in enumerate(actions) if action.kind == "again"]
    return actions[begins[-1] :] if begins else actions


def _found_bad(result: Mapping[str, Any]) -> set[str]:
    """Return the machines that an action accuses by a finding."""
    failed = {finding["machine"] for finding in result.get("findings", ()) if not finding["ok"]}
    return failed | {*result.get("suspects", ()), *result.get("unreachable", ())}


def _dead(case: RecoveryContext) -> tuple[str, ...]:
    """Return the machines of the job that were found dead when it was stopped last, and by the gateway."""
    *_, stopped = ({}, *((action.result or {}) for action in case.done("pause")))
    unreached, silent = stopped.get("unreachable", ()), stopped.get("silent", ())
    return dead.surely(case.incident.alerts, case.incarnations(), unreached, silent)


def _silent_at_pause(case: RecoveryContext) -> set[str]:
    return {name for action in case.done("pause") for name in (action.result or {}).get("silent", ())}


async def _until_its_lease_is_over(case: RecoveryContext, machine: str, drained_at: float) -> None:
    """Wait out the lease of a machine without contact: its ranks may run on; nothing is granted since ``drained_at``.

    Its agent ends them before the lease is over (:mod:`holdfast.policies.detect.silence`).
    """
    ctx = case.ctx
    usual_s = silence.lease_s(ctx.settings.heartbeat_s, ctx.policy.gateway)
    lease_s = max(usual_s, ctx.ledger.machine(machine).lease_s)
    left_s = drained_at + KNOWN_S + lease_s - ctx.clock.now()
    if left_s > 0:
        get_run_logger().info(
            "%s cannot be reached and may still run ranks: its lease ends in %.1f s", machine, left_s
        )
        await ctx.clock.sleep(left_s)
