"""History of the job: earlier incidents and the progress after each, in the form that policies need."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.models.alert import Alert, Incident, IncidentClass, IncidentState, Rung
from holdfast.models.history import Epoch
from holdfast.operations.context import Context
from holdfast.policies.classify import signature, usage_errors
from holdfast.policies.classify.meaning import number
from holdfast.policies.classify.roots import separate
from holdfast.policies.classify.signature import Position, Signature
from holdfast.policies.detect import starts
from holdfast.policies.escalate import evidence, without_steps
from holdfast.policies.escalate.ladder import PastIncident, since_progress
from holdfast.tasks import standing

_LOOK_BACK = 50
"""Incidents of the job, newest first."""


def past_incidents(ctx: Context, incident: Incident) -> list[PastIncident]:
    """Return earlier recovered incidents of the job, oldest first, with the progress made after each.

    Only those since a person last acted: submitted the job, resumed it, or switched its code.
    """
    epochs = ctx.ledger.epochs(incident.job)
    earlier = _recovered(ctx, incident, epochs)
    stepless = starts.never_reported(epochs, ctx.ledger.job(incident.job).submitted_at)
    return [
        _past(ctx, past, following, epochs, stepless=stepless)
        for past, following in zip(earlier, [*earlier, incident][1:], strict=True)
    ]


def signature_of(ctx: Context, incident: Incident, epochs: Sequence[Epoch]) -> Signature:
    """Return the signature of a failure: what failed, and where."""
    epoch = next((each for each in epochs if each.epoch == incident.epoch), None)
    position = Position()
    if epoch is not None:
        known = {"code_version": epoch.code_version, "start_step": epoch.start_step}
        position = Position.model_validate(known | {"step": epoch.reached})
    one_machine = epoch is not None and len(epoch.machines) == 1
    detect = ctx.policy.detect
    found = signature.of(
        incident,
        position,
        detect.network.switches,
        one_machine=one_machine,
        jump_steps=detect.metrics.jump_steps,
    )
    return found if one_machine else standing.signed(ctx, incident, found)


def facts(
    ctx: Context,
    incident: Incident,
    state_suspected: bool,
    newest: Signature | None = None,
    others: Collection[int] = (),
) -> evidence.FailureFacts:
    """Collect the evidence against the code, and against arithmetic or state.

    Args:
        ctx: services.
        incident: under treatment.
        state_suspected: the restored state led to the same failure before.
        newest: signature of its newest failure; None: of the one that opened it.
        others: epochs that failed in another way.
    """
    epochs = ctx.ledger.epochs(incident.job)
    incident = incident.model_copy(
        update={"alerts": tuple(each for each in incident.alerts if each.epoch not in others)}
    )
    mine = newest or signature_of(ctx, incident, epochs)
    past = past_incidents(ctx, incident)
    version = mine.position.code_version
    return evidence.FailureFacts(
        incident_class=incident.incident_class,
        signature=mine,
        version=version,
        version_age_s=_age_s(ctx, incident, epochs, version),
        ranks=_ranks(incident, mine, [each.signature for each in past]),
        again=len(since_progress(past, ctx.policy.ladder.progress_steps, mine)),
        state_suspected=state_suspected,
        last=_last(ctx, incident),
        refused=bool(_refused(ctx, incident)),
        refusal=usage_errors.refusal(separate(incident.alerts).roots),
    )


def _last(ctx: Context, incident: Incident) -> bool:
    """Return whether most of the other ranks had ended with status 0 before one that failed."""
    others = ctx.ledger.job(incident.job).spec.world_size - 1
    before = (number(root.evidence.get("ended_before")) for root in separate(incident.alerts).roots)
    return 2 * max(before, default=0) > others


def _refused(ctx: Context, incident: Incident) -> list[Alert]:
    ranks = ctx.ledger.job(incident.job).spec.world_size
    return usage_errors.find(separate(incident.alerts).roots, ranks)


def fell_again(
    ctx: Context, incident: Incident, until: int, failed: Signature, others: Collection[int] = ()
) -> int:
    """Count how often the newest failure came before at the same step, in epochs that the incident had started.

    Args:
        ctx: services.
        incident: under treatment.
        until: its newest epoch that failed.
        failed: the signature of the newest failure.
        others: epochs that failed in another way.
    """
    mine = [each for each in ctx.ledger.epochs(incident.job) if incident.epoch < each.epoch <= until]
    times = sum(
        each.last_step is None
        and each.start_step == failed.position.step
        and _fell_so(incident, each, failed)
        for each in mine
    )
    # Where it is another one than the first, it is among those that are counted.
    return max(0, times - 1) if incident.epoch in others else times


def _fell_so(incident: Incident, epoch: Epoch, failed: Signature) -> bool:
    roots = separate([alert for alert in incident.alerts if alert.epoch == epoch.epoch]).roots
    return any(
        (signature.what(root), str(root.evidence.get("user_frame") or "")) == (failed.what, failed.frame)
        for root in roots
    )


def since_fresh(ctx: Context, incident: Incident, epochs: Sequence[Epoch]) -> list[Incident]:
    """Return the job's earlier incidents since a person last acted: submitted it, resumed it, or switched its code."""
    known = ctx.ledger.incidents(job=incident.job, limit=_LOOK_BACK)[::-1]
    since = _fresh_since(ctx, incident, known, epochs)
    return [past for past in known if past.id != incident.id and since <= past.opened_at < incident.opened_at]


def _recovered(ctx: Context, incident: Incident, epochs: Sequence[Epoch]) -> list[Incident]:
    return [past for past in since_fresh(ctx, incident, epochs) if past.state is IncidentState.RECOVERED]


def _fresh_since(
    ctx: Context, incident: Incident, known: Sequence[Incident], epochs: Sequence[Epoch]
) -> float:
    """Return when a person last made a fresh start."""
    by_hand = [e.opened_at for e in epochs if e.incident_id is None and e.epoch <= incident.epoch]
    updates = [
        past.opened_at
        for past in known
        if past.incident_class is IncidentClass.CODE_UPDATE
        and past.state is IncidentState.RECOVERED
        and past.opened_at < incident.opened_at
    ]
    return max([ctx.ledger.job(incident.job).submitted_at, *by_hand, *updates])


def _past(
    ctx: Context, past: Incident, following: Incident, epochs: Sequence[Epoch], *, stepless: bool
) -> PastIncident:
    before, after = _reached(epochs, past.epoch), _reached(epochs, following.epoch)
    between = [each for each in epochs if past.epoch < each.epoch <= following.epoch]
    done = sum(max(0, (each.last_step or 0) - each.start_step) for each in between if each.last_step)
    new = max(0, after - before)
    return PastIncident(
        incident_class=past.incident_class,
        epoch=past.epoch,
        at=past.opened_at,
        rungs=tuple(
            Rung(str((action.result or {})["rung"]))
            for action in ctx.ledger.actions(past.id, "rung")
            if action.state == "done"
        ),
        progressed_steps=new,
        redone_steps=max(0, done - new),
        ran_on=stepless and _ran_on(ctx, past, following, epochs),
        signature=signature_of(ctx, past, epochs),
    )


def _ran_on(ctx: Context, past: Incident, following: Incident, epochs: Sequence[Epoch]) -> bool:
    """Return whether the ranks of a job that reports no steps ran for long enough between two incidents."""
    before_s, ran_s = (_ran_s(epochs, each) for each in (past, following))
    ran_s = min(ran_s, max(0.0, following.detected_at - past.detected_at))  # both may be of one epoch
    outside = signature_of(ctx, following, epochs).from_outside
    return without_steps.progressed(ran_s, before_s, ctx.policy.ladder.progress_s, from_outside=outside)


def _ran_s(epochs: Sequence[Epoch], failed: Incident) -> float:
    """Return the seconds for which the epoch ran that ended in an incident."""
    opened = next((each.opened_at for each in epochs if each.epoch == failed.epoch), failed.detected_at)
    return max(0.0, failed.detected_at - opened)


def _reached(epochs: Sequence[Epoch], epoch: int) -> int:
    return max((each.last_step or 0 for each in epochs if each.epoch <= epoch), default=0)


def _age_s(ctx: Context, incident: Incident, epochs: Sequence[Epoch], version: str) -> float | None:
    """Return the seconds before the fault at which the version first ran since the submission."""
    submitted_at = ctx.ledger.job(incident.job).submitted_at
    began = [e.opened_at for e in epochs if e.code_version == version and e.opened_at >= submitted_at]
    return max(0.0, incident.detected_at - min(began)) if began else None


def _ranks(incident: Incident, mine: Signature, before: Sequence[Signature]) -> tuple[int, ...]:
    """Return the ranks that raised the same in the same frame, in this incident and in earlier ones."""
    ranks = set(signature.ranks_with_one_frame(incident.alerts))
    if mine.frame:
        ranks |= {
            each.rank
            for each in before
            if each.rank is not None and (each.what, each.frame) == (mine.what, mine.frame)
        }
    return tuple(sorted(ranks))
