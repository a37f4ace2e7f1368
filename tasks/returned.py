"""Machines that restarted since they were accused: which of them go all the same, and the summary of what was done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.models.alert import AlertKind, Incident
from holdfast.models.history import machine_of
from holdfast.operations import flaps
from holdfast.operations.context import Context
from holdfast.policies.classify import sure_signs
from holdfast.policies.escalate import dead
from holdfast.policies.join_names import join_names
from holdfast.storage.ledger.one_view import one_view
from holdfast.tasks.recovery_context import RecoveryContext

_LOOK_BACK = 50
"""Incidents of a job, newest first."""


@one_view()
def since(ctx: Context, incident: Incident) -> set[str]:
    """Return the job's machines that registered again since their alerts, and whose eviction was not begun before."""
    begun = {machine_of(action.key) for action in ctx.ledger.actions(incident.id, "evict")}
    job = ctx.ledger.job(incident.job)
    present = {each.name: each.incarnation for each in ctx.ledger.machines_named(job.machines)}
    lives: dict[str, set[str | None]] = {name: set() for name in present if name not in begun}
    for alert in incident.alerts:
        if alert.machine in lives and sure_signs.is_sure(alert, ctx.policy.classify):
            lives[alert.machine].add(alert.incarnation)
    return {name for name, accused in lives.items() if accused and not accused & {None, present[name]}}


def evicted(case: RecoveryContext) -> dict[str, str]:
    """Return the machines that this incident took out of service, each with the incarnation that was meant last.

    One of them may serve the job again: repaired, or replaced by its engine under the same name.
    """
    return {machine_of(done.key): str(done.intent.get("incarnation", "")) for done in case.done("evict")}


@one_view()
def reached_again(case: RecoveryContext) -> set[str]:
    """Return the machines that did not answer before this round of the incident, and answered its order to stop."""
    pauses = case.done("pause")
    now = next((each for each in pauses if each.key == f"pause:{case.life}"), None)
    if now is None:
        return set()
    before = {name for each in pauses if each is not now for name in (each.result or {}).get("silent", ())}
    before = before if case.round else _only_silent(case)
    return before.difference((now.result or {}).get("unreachable", ()))


def _only_silent(case: RecoveryContext) -> set[str]:
    """Return the machines that this life of the job lost for their silence alone, for the first time in a while.

    Not once what was started without evicting them fell, or could not be started: they may be away again.
    """
    incident, policy = case.incident, case.ctx.policy.ladder.flaps
    lost = [
        each
        for each in incident.alerts
        if each.kind is AlertKind.MACHINE_LOST and each.at <= incident.opened_at
    ]
    # Asked at each boundary of every recovery: most lost no machine, and nothing more is read for those.
    if not lost or case.again or not (case.attempt == 1 or case.done("start")):
        return set()
    if not (found := dead.only_silent(lost, case.incarnations())):
        return found
    since = incident.opened_at - policy.window_s
    past = case.ctx.ledger.incidents(case.job, limit=_LOOK_BACK)
    earlier = [
        each for each in past if each.id != incident.id and since <= each.opened_at <= incident.opened_at
    ]
    found -= {
        alert.machine for each in earlier for alert in each.alerts if alert.kind is AlertKind.MACHINE_LOST
    }
    return found - flaps.find(case.ctx.ledger, sorted(found), case.ctx.clock.now(), case.ctx.policy).keys()


def meanwhile(case: RecoveryContext) -> set[str]:
    """Return the machines that restarted after this run took the incident up, and do not come and go."""
    back = since(case.ctx, case.incident).intersection(case.accused)
    return back - flaps.find(case.ctx.ledger, tuple(back), case.ctx.clock.now(), case.ctx.policy).keys()


def flapping(case: RecoveryContext) -> dict[str, str]:
    """Return those that came and went too often, and why."""
    if not case.returned:
        return {}
    return flaps.find(case.ctx.ledger, case.returned, case.ctx.clock.now(), case.ctx.policy)


def in_words(case: RecoveryContext, swapped: Mapping[str, str]) -> str:
    """Describe what became of the accused machines."""
    moves = ", ".join(f"{new} for {old}" for old, new in swapped.items())
    stay = [name for name in dict.fromkeys((*case.returned, *sorted(meanwhile(case)))) if name not in swapped]
    back = sorted(reached_again(case).intersection(case.job_now().machines).difference(stay))
    parts = [f"swapped in {moves}"] if moves else []
    if back:
        parts.append(f"{join_names(back)} {'answer' if len(back) > 1 else 'answers'} again")
    if stay:
        parts.append(f"{join_names(stay)} restarted since and stays: it was accused in its former life")
    parts += [_fewer(each.result or {}, swapped) for each in case.done("shrink")]
    return "; ".join(parts) or "no machine was replaced"


def _fewer(shrunk: Mapping[str, Any], swapped: Mapping[str, str]) -> str:
    count = shrunk.get("to")
    lacking = [name for name in shrunk.get("lacking", ()) if name not in swapped]
    without = f", without {join_names(lacking)}" if lacking else ""
    return f"goes on with {count} {'machine' if count == 1 else 'machines'} of {shrunk.get('from')}{without}"
