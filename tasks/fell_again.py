"""Step: find out why a job fell again that was started without a diagnosis, and climb the ladder of a crash.

Playbooks that know what to do replace a machine, change the code or the size of a job, and diagnose nothing. Where
what they started falls before its first step, that was not the cause, or not the only one: the standby has a fault of
its own, or the code raises beside a lost GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import LimitError
from holdfast.models.alert import IncidentClass
from holdfast.tasks.diagnose import diagnose
from holdfast.tasks.escalation import EscalationResult, escalate
from holdfast.tasks.evict import evict
from holdfast.tasks.recovery_context import RecoveryContext


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
    crash = case.model_copy(update={"incident_class": IncidentClass.JOB_CRASH})
    scope = case.ctx.policy.ladder.of(IncidentClass.JOB_CRASH).scope
    verdict = await diagnose(crash)
    try:
        tried = await escalate(crash, verdict)
    except LimitError:
        # Whatever else is found out, they do not serve the job's next attempt.
        await evict(case, faulty, "; ".join(case.incident.reasons) or "machine fault", scope)
        raise
    await evict(case, (*faulty, *tried.verdict.suspects), tried.did, scope)
    return tried
