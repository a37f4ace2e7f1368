"""Machines that stand out in hangs or slow stretches of a job, from the ledger: in this one, and in those before."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.models.agent import Check
from holdfast.models.alert import AlertKind, Incident, IncidentClass, Verdict
from holdfast.models.history import Action, ActionState
from holdfast.operations.context import Context
from holdfast.policies.classify.signature import Signature
from holdfast.policies.detect import standing_out
from holdfast.policies.detect.standing_out import Accusation, Weighed
from holdfast.policies.join_names import join_names
from holdfast.tasks.recovery_context import RecoveryContext

_LOOK_BACK = 50
"""Incidents of the job, newest first."""
_LOOKS = ("stacks", "check")
CLASSES = frozenset({IncidentClass.JOB_HANG, IncidentClass.FAIL_SLOW})
"""Classes in which a machine may do no more than stand out."""


def only(case: RecoveryContext, verdict: Verdict) -> bool:
    """Return whether the only evidence against the suspects is that they stand out in a hang."""
    if case.incident_class is not IncidentClass.JOB_HANG or verdict.sure:
        return False
    failed = {finding.check for finding in verdict.findings if not finding.ok}
    return not verdict.findings or failed <= {Check.FLIGHT_RECORDER}


def seen_at(verdict: Verdict) -> str:
    """Return what a verdict that explains it rests on, as the end of a sentence; empty: it explains nothing."""
    return f": {verdict.evidence[0]}" if (verdict.sure or verdict.explained) and verdict.evidence else ""


def proven(case: RecoveryContext, seen: Verdict, diagnosed: Verdict) -> Verdict:
    """Combine both verdicts; a machine that only stands out is no suspect: the ladder decides on it."""
    evidence, script = (*seen.evidence, *diagnosed.evidence), seen.script or seen.excuse
    if only(case, diagnosed):
        return Verdict(
            evidence=evidence, findings=diagnosed.findings, script=script, explained=seen.explained
        )
    return diagnosed.model_copy(update={"evidence": evidence, "script": script})


def weigh(case: RecoveryContext) -> Weighed:
    """Decide whether the machines that stand out now may be evicted."""
    ctx, incident, job = case.ctx, case.incident, case.job_now()
    mine = accusations(ctx, incident)
    if not mine:
        return Weighed()
    mine = _at_start(incident, mine)
    now = mine[-1].model_copy(
        update={"at": ctx.clock.now(), "excuse": mine[-1].excuse or _excuse(incident, mine[-1].ranks)}
    )
    before = [past for past in _alike(ctx, incident) if past.id != incident.id]
    past = [each for one in before for each in _at_start(one, accusations(ctx, one))]
    evicted = [
        action.done_at
        for one in (*before, incident)
        for action in ctx.ledger.actions(one.id, "evict")
        if action.done_at is not None
    ]
    return standing_out.weigh(
        now, [*past, *mine[:-1]], evicted, len(job.machines), ctx.policy.ladder.standing_out
    )


def accusations(ctx: Context, incident: Incident) -> list[Accusation]:
    """Return what stood out at each look of a hang, oldest first; from the alert where no look has more, or none is."""
    looks = _looks(ctx, incident) if incident.incident_class is IncidentClass.JOB_HANG else []
    if any((look.result or {}).get("sure") for look in looks):
        return []
    found = [each for look in looks if (each := _of_look(look)) is not None]
    lives: dict[str, Accusation] = {}
    for life, accusation in found:
        lives.setdefault(life, accusation)
    if lives or not incident.machine:
        return list(lives.values())
    ranks = () if incident.rank is None else (incident.rank,)
    return [Accusation(at=incident.opened_at, machines=(incident.machine,), ranks=ranks)]


def _looks(ctx: Context, incident: Incident) -> list[Action]:
    actions = ctx.ledger.actions(incident.id)
    return [each for each in actions if each.kind in _LOOKS and each.state is ActionState.DONE]


def signed(ctx: Context, incident: Incident, signature: Signature) -> Signature:
    """Return the signature of a hang, with the machine and rank that stood out in it."""
    if incident.incident_class is not IncidentClass.JOB_HANG or not (seen := accusations(ctx, incident)):
        return signature
    newest = seen[-1]
    rank = newest.ranks[0] if len(newest.ranks) == 1 else None
    return signature.model_copy(update={"machine": newest.machines[0], "rank": rank})


def blocked(incident: Incident) -> frozenset[int]:
    """Return the ranks that the detector saw waiting in the kernel for long."""
    return frozenset(_ranks_in(incident, "blocked"))


def _excuse(incident: Incident, ranks: Sequence[int]) -> str:
    """Return why the ranks that stand out have a reason of their own, as the detector saw them."""
    if not ranks:
        return ""
    if set(ranks) <= set(_ranks_in(incident, "ended")):
        return (
            f"ranks {join_names(ranks)} ended with status 0 before the others: the job's own code, no machine"
        )
    if set(ranks) <= set(_ranks_in(incident, "working")):
        return f"ranks {join_names(ranks)} work, while the others wait for them: no machine is at fault"
    return ""


def _at_start(incident: Incident, seen: Sequence[Accusation]) -> list[Accusation]:
    """Note whether the hang was before the first step."""
    starting = _evidence(incident, "starting") is True
    return [each.model_copy(update={"starting": starting}) for each in seen]


def _evidence(incident: Incident, name: str) -> object:
    hangs = [a for a in incident.alerts if a.kind is AlertKind.HANG and a.epoch in (None, incident.epoch)]
    return hangs[-1].evidence.get(name) if hangs else None


def _ranks_in(incident: Incident, name: str) -> Sequence[int]:
    found = _evidence(incident, name)
    return [rank for rank in found if isinstance(rank, int)] if isinstance(found, list | tuple) else []


def _of_look(look: Action) -> tuple[str, Accusation] | None:
    """Return the job's life that was looked at, and the machines that stood out."""
    result, at = look.result or {}, look.done_at or 0.0
    life = look.key.rpartition(":")[2]
    if look.kind == "stacks":
        named: Sequence[str] = result.get("suspects", ())
        ranks = tuple(result.get("ranks", ()))
    else:
        named = [
            finding["machine"]
            for finding in result.get("findings", ())
            if finding["check"] == Check.FLIGHT_RECORDER and not finding["ok"]
        ]
        ranks = ()
    why = result["evidence"][0] if result.get("explained") and result.get("evidence") else ""
    excuse = result.get("excuse", "")
    accused = Accusation(at=at, machines=tuple(named), ranks=ranks, excuse=excuse, why=why)
    return (life, accused) if named else None


def _alike(ctx: Context, incident: Incident) -> list[Incident]:
    """Return incidents of the job and of the same class since it was submitted, oldest first."""
    since = ctx.ledger.job(incident.job).submitted_at
    known = ctx.ledger.incidents(job=incident.job, limit=_LOOK_BACK)[::-1]
    return [
        past
        for past in known
        if past.incident_class is incident.incident_class and since <= past.opened_at <= incident.opened_at
    ]
