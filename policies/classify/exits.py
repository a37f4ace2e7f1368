"""Rank exits: separate the root cause from its cascading failures, and user code from everything else."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass
from holdfast.models.job import Job
from holdfast.policies.classify import sure_signs, usage_errors
from holdfast.policies.classify.meaning import harmless
from holdfast.policies.classify.roots import separate
from holdfast.policies.config.policy import ClassifyPolicy
from holdfast.policies.counted import counted


def is_cascade(alert: Alert) -> bool:
    """Return whether the alert is a rank exit that only follows the loss of a peer."""
    return alert.kind is AlertKind.RANK_EXIT and bool(alert.evidence.get("cascade"))


def root_cause(
    alerts: Sequence[Alert], job: Job, code_changed_at: float | None, policy: ClassifyPolicy
) -> Classification | None:
    """Judge the rank exits that are no cascading failures; None when there are none.

    A rank killed by a signal outweighs an exception: user code that fails because a peer died is a cascading failure
    that was not recognised as one.
    """
    roots = separate(alerts).roots
    if not roots:
        return None
    killed = [alert for alert in roots if alert.evidence.get("signal")]
    if killed:
        return _crash(killed[0], killed, alerts, f"was killed by {killed[0].evidence['signal']}", 0.9)
    if refused := usage_errors.find(roots, job.spec.world_size):
        return _refused(refused)
    if why := usage_errors.refusal(roots):
        return _refused_by_session(roots, why)
    wrong = [alert for alert in roots if is_user_code(alert, policy)]
    suspicious = {alert.machine for alert in _gpu_errors(roots, alerts)}
    # Raised in the same place where no GPU failed: the GPU did not raise it.
    if wrong and (not suspicious or _elsewhere_too(wrong, suspicious)):
        return _user_code(wrong, job, code_changed_at)
    first = roots[0]
    how = str(first.evidence.get("error_type") or f"status {first.evidence.get('exit_code')}")
    return _crash(first, roots, alerts, f"ended with {how}", 0.7)


def _elsewhere_too(wrong: Sequence[Alert], machines: Collection[str | None]) -> bool:
    def place(alert: Alert) -> tuple[object, object]:
        return alert.evidence.get("error_type"), alert.evidence.get("user_frame")

    clean = {place(alert) for alert in wrong if alert.machine not in machines}
    return all(place(alert) in clean for alert in wrong)


def is_user_code(alert: Alert, policy: ClassifyPolicy) -> bool:
    """Return whether the traceback ends in the job's own code with a programming error.

    An error from a restore of an unloadable state does not count, though the script called it; nor does a check by
    a framework (an assertion on a number that is not finite), or an error with another known cause.
    """
    if alert.evidence.get("unloadable") or alert.evidence.get("cause") not in (None, "", "code"):
        return False
    # `module.TypeError` as well as `TypeError`.
    name = str(alert.evidence.get("error_type") or "").rpartition(".")[2]
    return bool(alert.evidence.get("user_frame")) and name in policy.user_errors


def _user_code(wrong: Sequence[Alert], job: Job, code_changed_at: float | None) -> Classification:
    first = wrong[0]
    evidence = first.evidence
    ranks = sorted({alert.rank for alert in wrong if alert.rank is not None})
    reasons = [f"{evidence['error_type']} at {evidence['user_frame']} on ranks {ranks}"]
    if evidence.get("message"):
        reasons.append(str(evidence["message"])[:200])
    confidence = 0.8
    if len(ranks) == job.spec.world_size and len(ranks) > 1:
        confidence = 0.9
        reasons.append("on every rank: not one machine's fault")
    if code_changed_at is not None and first.at >= code_changed_at:
        confidence = min(0.95, confidence + 0.1)
        reasons.append(f"{first.at - code_changed_at:.0f} s after the code changed to {job.code_version}")
    return Classification(
        incident_class=IncidentClass.USER_CODE_ERROR,
        confidence=confidence,
        machine=None,
        rank=first.rank,
        reasons=tuple(reasons),
    )


def _refused(exits: Sequence[Alert]) -> Classification:
    first = next((alert for alert in exits if usage_errors.message_of(alert)), exits[0])
    ranks = sorted({alert.rank for alert in exits if alert.rank is not None})
    reason = f"ranks {ranks} ended with status {usage_errors.STATUS}, as for a command line that is refused"
    message = usage_errors.message_of(first)
    return Classification(
        incident_class=IncidentClass.USER_CODE_ERROR,
        confidence=0.9 if message else 0.8,
        machine=None,
        rank=first.rank,
        reasons=(f"{message}: {reason}" if message else reason,),
    )


def _refused_by_session(exits: Sequence[Alert], why: str) -> Classification:
    ranks = sorted({alert.rank for alert in exits if alert.rank is not None})
    return Classification(
        incident_class=IncidentClass.USER_CODE_ERROR,
        confidence=0.95,
        machine=None,
        rank=exits[0].rank,
        reasons=(why, f"refused on ranks {ranks}"),
    )


def _crash(
    first: Alert, roots: Sequence[Alert], alerts: Sequence[Alert], how: str, confidence: float
) -> Classification:
    reasons = [f"rank {first.rank} on {first.machine} {how}"]
    if unloadable := first.evidence.get("unloadable"):
        reasons.insert(0, f"the saved state cannot be loaded: {str(unloadable)[:300]}")
    if len(roots) > 1:
        reasons.append(f"{len(roots)} ranks report a cause of their own")
    if cascades := sum(is_cascade(alert) for alert in alerts):
        reasons.append(
            counted(cascades, "rank ended because it lost a peer", "ranks ended because they lost a peer")
        )
    reasons += [f"{sure_signs.describe(alert)} on the same machine" for alert in _gpu_errors(roots, alerts)]
    return Classification(
        incident_class=IncidentClass.JOB_CRASH,
        confidence=confidence,
        machine=first.machine,
        rank=first.rank,
        reasons=tuple(reasons),
    )


def _gpu_errors(roots: Sequence[Alert], alerts: Sequence[Alert]) -> list[Alert]:
    """Return Xids on the machines of the roots that are not fatal by themselves, but ask for an action."""
    machines = {alert.machine for alert in roots}
    return [
        alert
        for alert in alerts
        if alert.kind is AlertKind.XID and alert.machine in machines and not harmless(alert)
    ]
