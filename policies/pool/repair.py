"""Graded repair: the needs of an evicted machine, the next step, and when a person gets a ticket.

The mildest step that the verdict asks for comes first, a failed one leads to the next graver one, and every way ends
with delivery checks or with a ticket. Nothing is tried twice in one repair, and only so many repairs in a window.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from holdfast.models.alert import MACHINE_KINDS, Alert, AlertKind
from holdfast.models.base import Frozen
from holdfast.models.repair import Ask, Repair, RepairState, Step, StepState
from holdfast.policies.classify import beside, sure_signs, xid
from holdfast.policies.classify.meaning import harmless, number
from holdfast.policies.config.policy import ClassifyPolicy
from holdfast.policies.config.repair_policy import RepairPolicy
from holdfast.policies.pool import planned_move


class NextStep(Frozen):
    """The next step, and why."""

    step: Step
    why: str


INTERRUPTED_MOST = 2
"""Number of runs killed in the middle of one step before a person looks."""

_ASKS = {
    "reset_gpu": Ask.RESET_GPU,
    "restart_machine": Ask.RESTART_MACHINE,
    "check_hardware": Ask.HANDS,
    "contact_support": Ask.HANDS,
}
"""Request by the action of the Xid catalogue; the other actions ask nothing of a machine."""
_OF_HOSTS = {
    "gsp_timeout": Ask.RESET_GPU,
    "gpu_wedged": Ask.RESET_GPU,
    "nvlink_undetected": Ask.RESET_GPU,
    "machine_check": Ask.HANDS,
    "host_memory_error": Ask.HANDS,
    "memory_failure": Ask.HANDS,
    "pcie_fatal": Ask.HANDS,
    "disk_failing": Ask.HANDS,
    "disk_errors": Ask.HANDS,
}
"""Request by the check of a host that shows broken hardware."""
_GRAVITY = tuple(Ask)
_ON_THE_MACHINE = frozenset({Step.RESET_GPU, Step.RESTART_MACHINE, Step.DIAGNOSE})
"""Steps on a machine that is out of service, and that nothing of ours runs on."""


def enabled(policy: RepairPolicy, driver: str) -> bool:
    """Return whether machines are repaired. ``auto``: where they are hardware of their own."""
    return driver != "local" if policy.enabled == "auto" else bool(policy.enabled)


def asked(
    alerts: Iterable[Alert], machine: str, reasons: Collection[str], policy: ClassifyPolicy
) -> tuple[Ask, str] | None:
    """Return the gravest repair that the accusation of ``machine`` asks for, and why; None: it names no repair.

    Signs that prove a fault by themselves accuse it; where there are none, what the incident's ``reasons`` name as the
    explanation, or as why the job left it. Whatever else was noticed on the machine would be repaired for a verdict
    about something else.
    """
    about = [alert for alert in alerts if alert.firing and alert.machine == machine]
    sure = [alert for alert in about if sure_signs.is_sure(alert, policy)]
    found = [
        (ask, why)
        for alert in sure or [alert for alert in about if _is_named(alert, reasons)]
        for ask, why in [_asks(alert)]
        if ask is not None
    ]
    gravest = max((ask for ask, _ in found), key=_GRAVITY.index, default=None)
    if gravest is None:
        return None
    return gravest, "; ".join(dict.fromkeys(why for ask, why in found if ask is gravest))[:500]


def _is_named(alert: Alert, reasons: Collection[str]) -> bool:
    """Return whether the incident's reasons name the alert."""
    sign = alert.kind in MACHINE_KINDS
    return beside.described(alert) in reasons or (sign and planned_move.reason(alert) in reasons)


def _asks(alert: Alert) -> tuple[Ask | None, str]:  # noqa: PLR0911  (a table)
    if alert.kind is AlertKind.GPU_LOST:
        return Ask.RESTART_MACHINE, "a GPU is lost"
    if alert.kind is AlertKind.SXID and alert.evidence.get("fatal") is True:
        return Ask.RESET_GPU, f"fatal SXid {alert.evidence.get('sxid', '')}".rstrip()
    if alert.kind is AlertKind.GPU_ECC_UNCORRECTABLE:
        return Ask.RESET_GPU, sure_signs.describe(alert)
    if alert.kind is AlertKind.DISK_FAULT:
        return Ask.HANDS, sure_signs.describe(alert)
    if alert.kind is AlertKind.HOST_FAULT and not harmless(alert):
        return _OF_HOSTS.get(str(alert.evidence.get("check"))), sure_signs.describe(alert)
    if alert.kind is not AlertKind.XID:
        return None, ""
    entry = xid.resolved(number(alert.evidence.get("xid", "")), str(alert.evidence.get("line", "")))
    # A code that leaves the GPU usable is no verdict against its machine.
    ask = _ASKS.get(entry.action.value) if entry.lost else None
    return ask, f"Xid {entry.code}, {entry.name}"


def next_move(repair: Repair, recent: Sequence[Repair], policy: RepairPolicy, now: float) -> NextStep | None:
    """Return the next step of an open repair; None: it is over.

    Args:
        repair: with the steps that were begun.
        recent: former repairs of the same machine.
        policy: limits.
        now: Unix seconds.
    """
    if repair.state is not RepairState.OPEN:
        return None
    return _after_last(repair) if repair.steps else _first(repair, recent, policy, now)


def _after_last(repair: Repair) -> NextStep | None:
    last = repair.steps[-1]
    if last.step is Step.TICKET:
        return NextStep(step=Step.TICKET, why=_why_ticket(repair))
    match last.state:
        case StepState.BEGUN:
            return _again(last.step, last.times)
        case StepState.FAILED:
            return _after_failure(repair, last.step, last.said)
        case StepState.SKIPPED if last.step is not Step.DIAGNOSE:
            return NextStep(step=Step.TICKET, why=f"{last.step.value} cannot be done here: {last.said}")
    return _after(last.step)


def _first(repair: Repair, recent: Sequence[Repair], policy: RepairPolicy, now: float) -> NextStep:
    if repair.asked is Ask.HANDS:
        return NextStep(step=Step.TICKET, why=f"{repair.why}: no command repairs that")
    before = [past for past in recent if past.id != repair.id and past.opened_at > now - policy.window_s]
    tried = [past for past in before if any(done.step in _ON_THE_MACHINE for done in past.steps)]
    if len(tried) >= policy.most:
        days = policy.window_s / 86_400
        return NextStep(
            step=Step.TICKET,
            why=f"{repair.why}: repaired {len(tried)} times in the last {days:g} days, at most {policy.most} are tried",
        )
    return NextStep(step=Step(repair.asked.value), why=repair.why)


def _again(step: Step, times: int) -> NextStep:
    """Repeat a step in the middle of which a run was killed. All steps are safe to repeat."""
    if times >= INTERRUPTED_MOST:
        return NextStep(step=Step.TICKET, why=f"{step.value} was interrupted {times} times")
    return NextStep(step=step, why="the run before did not end it")


def _after_failure(repair: Repair, step: Step, result: str) -> NextStep:
    """Follow a failed reset by a restart; after that a person is needed at the machine."""
    restarted = any(done.step is Step.RESTART_MACHINE for done in repair.steps)
    if step is Step.RESET_GPU and not restarted:
        return NextStep(step=Step.RESTART_MACHINE, why=f"the reset did not work: {result}")
    return NextStep(step=Step.TICKET, why=f"{step.value} failed: {result}")


def _after(step: Step) -> NextStep | None:
    match step:
        case Step.RESET_GPU | Step.RESTART_MACHINE:
            return NextStep(step=Step.DIAGNOSE, why="to see whether it worked")
        case Step.DIAGNOSE:
            return NextStep(step=Step.RETURN, why="there is no evidence against it")
        case Step.RETURN:
            return NextStep(step=Step.CHECK, why="before any job may have it")
        case Step.CHECK:
            return NextStep(step=Step.ADMIT, why="it passed")
    return None


def _why_ticket(repair: Repair) -> str:
    """Return why the first ticket was to be written: it did not arrive."""
    failed = [
        done for done in repair.steps if done.state is StepState.FAILED and done.step is not Step.TICKET
    ]
    return f"{failed[-1].step.value} failed: {failed[-1].said}" if failed else repair.why
