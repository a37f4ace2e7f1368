"""Step: find out why a job fell again that was started without a diagnosis, and climb the ladder of a crash.

Playbooks that know what to do replace a machine, change the code or the size of a job, and diagnose nothing. Where
what they started falls before its first step, that was not the cause, or not the only one: the standby has a fault of
its own, or the code raises beside a lost GPU. Where the store does not give the state, no machine is looked at: it is
waited for.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import LimitError
from holdfast.models.alert import IncidentClass, Verdict
from holdfast.policies.classify import services
from holdfast.policies.classify.roots import separate
from holdfast.tasks.diagnose import diagnose
from holdfast.tasks.escalation import EscalationResult, escalate
from holdfast.tasks.evict import evict
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.services import await_healthy


async def look_further(case: RecoveryContext, faulty: Sequence[str] = ()) -> EscalationResult:
    """Diagnose the stopped job and climb one rung, as after a crash; evict the machines that are found.

    A machine that alerts surely accuse by now explains it without a check.

    Args:
        case: the incident.
        faulty: machines to evict in any case.

    Raises:
        LimitError: the ladder is spent, or the breaker or a person forbids an eviction: a human decides.
        StoppedError: the ladder is spent, the job is to be stopped.
        RecoveryError: a machine still lives after its eviction.
    """
    scope = case.ctx.policy.ladder.of(IncidentClass.JOB_CRASH).scope
    outside = _by_service(case)
    means = IncidentClass.EXTERNAL_SERVICE if outside else IncidentClass.JOB_CRASH
    fallen = case.model_copy(update={"incident_class": means})
    try:
        if outside:
            await await_healthy(fallen)
        tried = await escalate(fallen, Verdict() if outside else await diagnose(fallen))
    except LimitError:
        # Whatever else is found out, they do not serve the job's next attempt.
        await evict(case, faulty, "; ".join(case.incident.reasons) or "machine fault", scope)
        raise
    await evict(case, (*faulty, *tried.verdict.suspects), tried.did, scope)
    return tried


def _by_service(case: RecoveryContext) -> bool:
    """Return whether a service outside of the job failed what fell last."""
    roots = separate(alert for alert in case.incident.alerts if alert.epoch == case.broken_epoch).roots
    return bool(roots) and services.failed_it(roots[0])
