"""Step: the ladder. Choose the rung that is due, and climb it: retry, evict, rollback, replay, a human, stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.errors import LimitError, StoppedError
from holdfast.models.alert import Blame, IncidentClass, Rung, Verdict
from holdfast.models.base import Frozen
from holdfast.models.history import ActionState, machine_of
from holdfast.models.job import Job
from holdfast.models.machine import MachineState, Scope
from holdfast.models.missing import Missing
from holdfast.operations import flaps, offenders, regularity
from holdfast.operations.swap import excluded
from holdfast.policies.classify import suspects
from holdfast.policies.classify.signature import Signature
from holdfast.policies.detect import switches
from holdfast.policies.detect.standing_out import Weighed
from holdfast.policies.diagnose import unplayed, verdicts
from holdfast.policies.escalate import code, cut_off, evidence, in_place, ladder, repeated, shortage
from holdfast.policies.join_names import join_names
from holdfast.storage.ledger.one_view import one_view
from holdfast.tasks import changes, falls, history, late, poisoned, standing
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.replay import replay
from holdfast.tasks.rollback import last_good, rollback

_MOST_REASONS = 3
"""Lines of evidence in the message of a refusal."""
_LOOK_BACK = 50
"""Incidents of the job, newest first."""
_OF_ALL = "every group fails in replay: code or data, not a machine"
_BY_DATA = frozenset({IncidentClass.JOB_CRASH, IncidentClass.USER_CODE_ERROR, IncidentClass.NAN_LOSS})
"""Classes in which the data that is read may be the cause of the failure; so it may be of a jump of the loss."""


_OF_ONE_MACHINE = frozenset({IncidentClass.JOB_CRASH, IncidentClass.JOB_HANG, IncidentClass.NAN_LOSS})
"""Classes in which the only machine of a job may be at fault, and nothing beside it shows that."""


class EscalationResult(Frozen):
    """The result of a rung."""

    did: str
    """Part of the summary, after the suspects' names."""
    verdict: Verdict
    """The verdict, with the machines to evict before the job starts again."""
    scope: Scope | None = None
    """Jobs that their eviction keeps away; None: as in the class's ladder."""

    @property
    def summary(self) -> str:
        """The result in words."""
        return f"{self.verdict.named} {self.did}" if self.verdict.suspects else self.did

    @property
    def said(self) -> str:
        """The former name of :attr:`summary`, for playbooks of other packages until the next release."""
        return self.summary


async def escalate(
    case: RecoveryContext, verdict: Verdict, failed: str = "failed stop-time diagnosis"
) -> EscalationResult:
    """Climb one rung when ``verdict`` names no culprit; the ladder of the incident's class decides which.

    Args:
        case: the incident.
        verdict: the diagnosis.
        failed: the reason to report for machines that it accuses.

    Raises:
        LimitError: the ladder is spent, a human decides.
        StoppedError: the ladder is spent, the job is to be stopped.
    """
    root = late.verdict(case)
    if root and (set(verdict.suspects) <= set(root.suspects) or _compared_only(case, verdict)):
        return EscalationResult(did=f"surely at fault ({'; '.join(late.roots(case).values())})", verdict=root)
    if verdict.suspects:
        must_be_few(case, verdict)
        return EscalationResult(did=verdicts.in_words(verdict, failed), verdict=verdict)
    if asked := late.asked(case):
        wanted = verdict.model_copy(update={"suspects": tuple(asked), "blame": Blame.MACHINES})
        return EscalationResult(did=f"evicted ({'; '.join(asked.values())})", verdict=wanted)
    await changes.compare_code(case)
    return await _act(case, verdict, await climb(case, verdict.blame is Blame.CODE))


def _compared_only(case: RecoveryContext, verdict: Verdict) -> bool:
    """Return whether the suspects of a slow job only lag behind others: a sure failure explains that."""
    return case.incident_class is IncidentClass.FAIL_SLOW and not verdict.sure and not verdict.findings


async def _act(case: RecoveryContext, verdict: Verdict, rung: Rung) -> EscalationResult:
    match rung:
        case Rung.RETRY:
            regular = _of_newest_rung(case, "regular")
            of_several = f"{join_names(verdict.shared)} suspected, no machine" if verdict.shared else ""
            busy = cut_off.why_none(case.incident.alerts)
            no_machine = _OF_ALL if _shown_by_all(case) else f"no machine at fault{busy and f': {busy}'}"
            spared = _of_newest_rung(case, "spared") or of_several or no_machine
            more = (verdict.script, suspect_data(case), regular)
            also = "".join(f"; {note}" for note in more if note and note not in spared)
            return EscalationResult(did=f"{spared}; retried in place{also}", verdict=verdict)
        case Rung.SKIP_DATA:
            step = await skip_data(case)
            summary = f"no machine at fault; {suspect_data(case)}; the data of step {step} is skipped"
            return EscalationResult(did=summary, verdict=verdict)
        case Rung.OLDER_STATE:
            also = "".join(f"; {note}" for note in (verdict.script, suspect_data(case)) if note)
            left = await poisoned.leave_behind(case)
            return EscalationResult(did=f"no machine at fault; {left}{also}", verdict=verdict)
        case Rung.EVICT:
            return _leave(case, verdict)
        case Rung.ROLLBACK:
            leaks = _of_newest_rung(case, "came_with")
            version = await rollback(case, leaks or "no machine at fault")
            action = f"{leaks} (a leak?); rolled" if leaks else "rolled"
            return EscalationResult(did=f"{action} the code back to {version}", verdict=verdict)
        case Rung.REPLAY:
            return await _replay(case, verdict.script)
        case Rung.STOP:
            raise StoppedError("all rungs of the ladder are used up")
        case _:
            if any(evidence.MUST_CHANGE in line for line in attempts_in_words(case)):
                raise LimitError(evidence.MUST_CHANGE)
            also = "".join(f"{note}; " for note in (verdict.script, suspect_data(case)) if note)
            outside = case.incident_class is IncidentClass.EXTERNAL_SERVICE
            raise LimitError(
                f"{also}all rungs of the ladder are used up: " + "; ".join(attempts_in_words(case)),
                Missing.SERVICE if outside else Missing.CHANGE,
            )


def _leave(case: RecoveryContext, verdict: Verdict) -> EscalationResult:
    """Accuse the machines that the rung evicts, in words of its evidence."""
    suspects: tuple[str, ...]
    if only := _of_newest_rung(case, "only_machine"):
        suspects, did = (only,), "is the only machine of the job, which is tried on a standby"
    elif case.incident_class in standing.CLASSES:
        suspects, did = _accused(case)[0], f"stands out again{standing.seen_at(verdict)}"
    else:
        often = _of_newest_rung(case, "often")
        suspects, did = _accused(case)[0], "accused by the alerts" + (f": {often}" if often else "")
    accused = verdict.model_copy(update={"suspects": suspects, "blame": Blame.MACHINES})
    # Nothing was found on a job's only machine: it may serve other jobs.
    return EscalationResult(did=did, verdict=accused, scope=Scope.JOB if only else None)


async def _replay(case: RecoveryContext, script: str) -> EscalationResult:
    replayed = await replay(case)
    if replayed.blame is not Blame.CODE:
        nothing = next(
            (line for line in replayed.evidence if line.startswith(unplayed.COULD_NOT)),
            "not reproduced by replay",
        )
        nothing = f"{script}; {nothing}" if script else nothing
        did = "accused by dual-phase replay" if replayed.suspects else nothing
        return EscalationResult(did=did, verdict=replayed)
    if why := _suspected_state(case):
        return EscalationResult(did=f"every group fails in replay; {why}", verdict=replayed)
    try:
        version = await rollback(case, "every machine shows the fault in replay")
    except LimitError as limit:  # what was found comes first, then what is missing
        raise LimitError(f"{_OF_ALL}; {limit}", limit.missing, limit.again_at) from limit
    return EscalationResult(
        did=f"every group fails in replay; rolled the code back to {version}", verdict=replayed
    )


def _shown_by_all(case: RecoveryContext) -> bool:
    """Return whether a replay of this incident failed in every group."""
    return any((action.result or {}).get("blame") == Blame.CODE for action in case.done("replay"))


def _suspected_state(case: RecoveryContext) -> str:
    """Return why the state that all groups of a replay restored may be bad, if there is no code to roll back to."""
    seen = circumstances(case, falls.of(case))
    return "" if seen.can_rollback else seen.once_more


def must_be_few(case: RecoveryContext, verdict: Verdict) -> None:
    """Refuse an over-eviction that rests on comparisons; machines that surely fail are evicted, however many.

    Raises:
        LimitError: more machines are accused than may be evicted at once.
    """
    limit = case.ctx.policy.aggregate.limit(len(case.job_now().machines))
    if verdict.confidence < 1 and len(verdict.suspects) > limit:
        why = "; ".join(verdict.evidence[:_MOST_REASONS])
        raise LimitError(f"{verdict.named} are accused ({why}), more than the over-eviction limit of {limit}")


@task(task_run_name="choose the rung")
async def climb(case: RecoveryContext, common_cause: bool = False) -> Rung:
    """Choose the next rung for this job: higher when lower ones did not bring progress."""

    async def act() -> dict[str, Any]:
        with one_view():
            fell = falls.of(case)
            seen = circumstances(case, fell, common_cause)
            decision = decide(case, fell, seen)
        regular = seen.regular
        return {
            "rung": decision.rung.value,
            "reasons": list(decision.reasons),
            "data": decision.data,
            "skip": decision.skip,
            "spared": seen.spared,
            "only_machine": seen.only_machine if decision.elsewhere else "",
            "often": "; ".join(dict.fromkeys(seen.flapping.values()))
            or ("it was so often recently" if seen.repeat_offenders else ""),
            "regular": regular.in_words if regular else "",
            "came_with": seen.came_with,
            # Whose code goes back for a leak is to hear of it.
            "look": bool(regular and (regular.look or seen.came_with)),
            "epoch": case.broken_epoch,
        }

    done = await case.once("rung", case.life, {}, act)
    get_run_logger().info("rung: %s (%s)", done["rung"], "; ".join(done["reasons"]))
    return Rung(str(done["rung"]))


@one_view()
def decide(
    case: RecoveryContext, fell: falls.Falls | None = None, seen: ladder.Circumstances | None = None
) -> ladder.RungDecision:
    """Return the ladder's next rung, without climbing it.

    Args:
        case: the incident.
        fell: its failures; None: they are collected.
        seen: the circumstances; None: they are collected.
    """
    policy, fell = case.ctx.policy.ladder, fell or falls.of(case)
    return ladder.next_rung(
        history.past_incidents(case.ctx, case.incident),
        falls.tried(case, fell),
        policy.of(case.incident_class),
        policy.progress_steps,
        seen or circumstances(case, fell),
        policy.code_changed_s,
    )


@task(task_run_name="pass over bad data")
async def skip_data(case: RecoveryContext) -> int:
    """Have every further epoch of the job skip the data of the step that the ladder names; return that step."""
    step = int((case.done("rung")[-1].result or {})["skip"])

    async def act() -> dict[str, Any]:
        return {"step": step}

    done = await case.once("skip", case.life, {"step": step}, act)
    return int(done["step"])


def circumstances(
    case: RecoveryContext, fell: falls.Falls, common_cause: bool = False
) -> ladder.Circumstances:
    """Collect the circumstances beside the symptom, from the ledger; ``fell``: the failures of the incident."""
    ctx, job, policy = case.ctx, case.job_now(), case.ctx.policy
    now = ctx.clock.now()
    waited = any((action.result or {}).get("waited_for") for action in case.done("await"))
    waited |= any(action.intent.get("waited_for") == Missing.SERVICE for action in case.done("again"))
    # A resource that all machines missed and that came back is no machine's fault.
    # Nor is an exception of the job's own code.
    blameless = waited or case.incident_class is IncidentClass.USER_CODE_ERROR
    accused, standing_out = ((), Weighed()) if blameless else _accused(case)
    spared = standing_out.spared or _spared_for_space(case, accused) or _spared_in_place(case, accused)
    busy = "" if spared else cut_off.why_spared(accused, case.incident.alerts)
    accused = () if (spared and not standing_out.spared) or busy else accused
    again = {alert.machine or "" for alert in repeated.find(case.incident.alerts, policy.classify)}
    flapping = flaps.find(ctx.ledger, accused, now, policy)
    state = poisoned.finding(case)
    facts = history.facts(ctx, case.incident, bool(state.leave or state.once_more), fell.newest, fell.others)
    found = {"changed": changes.found(case), "fell_since": fell.again, "incident_class": case.incident_class}
    facts = facts.model_copy(update=found)
    changed_at = code.changed_at(ctx.ledger.epochs(job.name), job.submitted_at)
    changed_s_ago = None if changed_at is None else max(0.0, case.incident.detected_at - changed_at)
    before = last_good(case, job.code_version)
    can_rollback = before is not None
    can_rollback &= evidence.may_go_back(facts, changed_s_ago, policy.ladder.code_suspect_s)
    regular = None if case.again else regularity.of(ctx, case.incident)
    may_skip = _may_skip(case, facts.signature)
    return ladder.Circumstances(
        can_rollback=can_rollback,
        code_changed_s_ago=changed_s_ago,
        accused=accused,
        # A network fault that came twice within its window is evicted at once (ByteRobust), as is a repeat offender.
        # So is one that flaps, and one that stands out in hangs again, whatever progress the job made between them.
        offenders=offenders.find(ctx.ledger, now, policy.ladder)
        | again
        | {*standing_out.machines}
        | flapping.keys(),
        flapping=flapping,
        spared=spared,
        busy=busy,
        switch=switches.shared(accused, case.incident.alerts, policy.detect.network.switches),
        common_cause=common_cause,
        poisoned=state.leave.why if state.leave else "",
        once_more=state.once_more,
        states_spent=state.spent,
        signature=facts.signature,
        waited=_waited(case),
        code_cleared=evidence.code_cleared(facts, policy.ladder.code_suspect_s),
        replay_cleared=evidence.arithmetic_cleared(facts),
        fell_again=history.fell_again(ctx, case.incident, case.broken_epoch, fell.newest, fell.others),
        regular=regular,
        came_with=regularity.came_with(ctx, job.name, regular, before),
        by_data=_by_data(case, facts.signature),
        may_skip=may_skip,
        skipped=ctx.ledger.skipped_steps(job.name) if job.spec.skip_bad_batches else (),
        no_retry=evidence.no_retry(facts, policy.ladder.code_changed_s, can_rollback, bool(may_skip)),
        only_machine=_only_machine(case),
    )


def _may_skip(case: RecoveryContext, failed: Signature) -> int:
    """Return the number of steps that the job file allows it to pass over for such a failure."""
    return case.job_now().spec.skip_bad_batches if _by_data(case, failed) else 0


def _by_data(case: RecoveryContext, failed: Signature) -> bool:
    return case.incident_class in _BY_DATA or failed.jumped


def _only_machine(case: RecoveryContext) -> str:
    """Return the job's only machine where a standby may take its place; empty: there is none, or one did lately."""
    ctx, machines = case.ctx, case.job_now().machines
    if len(machines) != 1 or case.incident_class not in _OF_ONE_MACHINE:
        return ""
    unfit = excluded(ctx, machines[0])
    if all(each.name in unfit for each in ctx.ledger.machines(state=MachineState.STANDBY)):
        return ""
    since = ctx.clock.now() - ctx.policy.ladder.only_machine_s
    return "" if ctx.ledger.evictions(since, case.job) else machines[0]


def _waited(case: RecoveryContext) -> str:
    """Return why this round began; empty in the first one, and once a rung was climbed in it."""
    if not case.round or any(a.key.endswith(case.again_after) for a in case.done("rung")):
        return ""
    return str(case.done("again")[-1].result["why"])


def accused_by_alerts(case: RecoveryContext) -> tuple[str, ...]:
    """Return the machines of the job that the incident's alerts accuse, within the over-eviction limit."""
    job = case.job_now()
    named = suspects.named(case.incident.alerts, case.incident.machine, job)
    return _unless_many(case, job, named)


def _unless_many(case: RecoveryContext, job: Job, machines: tuple[str, ...]) -> tuple[str, ...]:
    """Return the machines, within the over-eviction limit; else none: a human must look first."""
    return machines if len(machines) <= case.ctx.policy.aggregate.limit(len(job.machines)) else ()


def _accused(case: RecoveryContext) -> tuple[tuple[str, ...], Weighed]:
    """Return machines that may be evicted without proof by a check; and the decision on those that stand out."""
    if case.incident_class not in standing.CLASSES:
        return accused_by_alerts(case), Weighed()
    weighed, job = standing.weigh(case), case.job_now()
    # That a rank is slow is all that signals of a slow job say, and is weighed.
    slow = case.incident_class is IncidentClass.FAIL_SLOW
    named = () if slow else suspects.named(case.incident.alerts, None, job)
    return _unless_many(case, job, tuple(dict.fromkeys((*named, *weighed.machines)))), weighed


def _spared_for_space(case: RecoveryContext, accused: Sequence[str]) -> str:
    """Return why machines without space are not evicted; empty: nothing is in the way, or space is not the matter."""
    incident, ledger = case.incident, case.ctx.ledger
    if case.incident_class is not IncidentClass.STORAGE_FAULT or not shortage.is_of_space(incident.alerts):
        return ""
    since = case.job_now().submitted_at
    past = [
        shortage.Evicted(incident=each.id, machine=machine_of(action.key), at=action.begun_at)
        for each in ledger.incidents(case.job, limit=_LOOK_BACK)[::-1]
        if shortage.precedes(each, incident, since)
        for action in ledger.actions(each.id, "evict")
        if action.state is ActionState.DONE
    ]
    return shortage.why_spared(accused, past, case.ctx.clock.now())


def _spared_in_place(case: RecoveryContext, accused: Sequence[str]) -> str:
    """Return why a machine stays whose forerunners in its place went for the same; empty: nothing is in the way."""
    ctx, job = case.ctx, case.job_now()
    if len(accused) != 1 or accused[0] not in job.machines:
        return ""
    epochs, slot = ctx.ledger.epochs(case.job), job.machines.index(accused[0])
    served = {each.epoch: each.machines for each in epochs if len(each.machines) == len(job.machines)}
    what = history.signature_of(ctx, case.incident, epochs).what
    past = [
        in_place.Forerunner(incident=each.id, machine=served[each.epoch][slot], at=action.begun_at)
        for each in history.since_fresh(ctx, case.incident, epochs)
        if each.epoch in served and history.signature_of(ctx, each, epochs).what == what
        for action in ctx.ledger.actions(each.id, "evict")
        if action.state is ActionState.DONE and machine_of(action.key) == served[each.epoch][slot]
    ]
    return in_place.why_spared(accused[0], what, past, ctx.clock.now())


def suspect_data(case: RecoveryContext) -> str:
    """Return why the data is a suspect too, by the newest choice of a rung."""
    return _of_newest_rung(case, "data")


def _of_newest_rung(case: RecoveryContext, key: str) -> str:
    chosen = case.done("rung")
    return str((chosen[-1].result or {}).get(key, "")) if chosen else ""


def attempts_in_words(case: RecoveryContext) -> list[str]:
    """Return the reasons of the newest choice of a rung."""
    chosen = case.done("rung")
    return [str(line) for line in (chosen[-1].result or {})["reasons"]] if chosen else []
