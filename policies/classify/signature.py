"""The signature of a failure: what failed, and where. Two failures with one signature are the same failure again.

A ladder is climbed by the same failure coming again. Failures that differ are independent: each is retried in place
with a budget of its own, however soon after one another they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.models.alert import Alert, AlertKind, Incident, IncidentClass
from holdfast.models.base import Frozen
from holdfast.policies.classify.meaning import number
from holdfast.policies.classify.roots import separate
from holdfast.policies.detect import switches

FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGSTOP"})
"""Signals sent from outside the rank: no evidence about code, data or arithmetic."""
_JUMP = " jump"
_NEAR_STEPS = 1
"""The same failure is reported with one step or the next, depending on which rank noticed it first."""


class Position(Frozen):
    """Place in the training at which it failed."""

    code_version: str = ""
    start_step: int | None = None
    """Step of the state from which the failing epoch was restored."""
    step: int | None = None
    """Newest complete step: the data of the next one was being read."""


class Signature(Frozen):
    """Known facts of one failure; an empty ``what``: nothing distinguishes it from any other."""

    what: str = ""
    """Signal, exception, exit status, or the kind of the root alert."""
    frame: str = ""
    """Innermost frame in the job's own code."""
    rank: int | None = None
    machine: str | None = None
    domain: str = ""
    """The switch of its machine."""
    position: Position = Position()

    @property
    def from_outside(self) -> bool:
        """A signal from outside killed it: neither code nor data nor arithmetic did."""
        return self.what in FROM_OUTSIDE

    @property
    def jumped(self) -> bool:
        """The loss or gradient norm jumped: its numbers are finite, and the job trains on."""
        return self.what.endswith(_JUMP)

    @property
    def description(self) -> str:
        """The signature in words."""
        where = [f"rank {self.rank}" if self.rank is not None else "", self.machine or "", self.frame]
        place = ", ".join(filter(None, where))
        return (self.what or "unknown failure") + (f" ({place})" if place else "")


def of(
    incident: Incident,
    position: Position | None = None,
    domains: Mapping[str, Iterable[str]] = switches.NONE_KNOWN,
    *,
    one_machine: bool = False,
    jump_steps: int = 0,
) -> Signature:
    """Return the signature of an incident.

    Args:
        incident: with its alerts.
        position: where its epoch was; None: not known.
        domains: shell patterns of machine names by switch.
        one_machine: the job has no other, so that its machine distinguishes nothing.
        jump_steps: so many steps in a row are high before a jump is reported.
    """
    mine = [alert for alert in incident.alerts if alert.epoch in (None, incident.epoch)]
    root = _root(mine)
    if root is None:
        return Signature(position=position or Position())
    if (step := _own_step(root, jump_steps)) is not None:
        # The alert's own: the job's newest step is reported only now and then, and a wrong number is one of its steps.
        position = (position or Position()).model_copy(update={"step": step})
    machine = None if one_machine else root.machine
    return Signature(
        what=what(root),
        frame=str(root.evidence.get("user_frame") or ""),
        rank=root.rank,
        machine=machine,
        domain=switches.of(machine, mine, domains) if machine else "",
        position=position or Position(),
    )


def same(one: Signature, other: Signature) -> bool:
    """Return whether both are one failure that came twice.

    * Nothing is known of one of them: nothing distinguishes them.
    * Another signal, exception or frame: another failure.
    * A kill from outside is the same when it hits the same rank again, or a machine of the same switch. Kills of
      different ranks on one machine are independent; whether the machine is at fault, their number shows
      (:mod:`holdfast.policies.pool.rank_deaths`).
    * The same exception in the same frame is the same on whatever rank it shows.
    * Hangs in which different ranks of different machines stand out are different.
    * Else it must be at the same place: rank, machine, switch, or step of the training.
    """
    if not one.what or not other.what:
        return True
    if one.what != other.what or (one.frame and other.frame and one.frame != other.frame):
        return False
    if (one.frame and one.frame == other.frame) or not (_placed(one) and _placed(other)):
        return True
    here = _same_machine(one, other)
    if one.what == AlertKind.HANG and one.machine and other.machine:
        return here  # another rank is waited for each time: its step is that of all ranks
    if one.from_outside:
        return here and not _different_ranks_of_one_machine(one, other)
    return here or same_step(one, other)


def same_step(one: Signature, other: Signature) -> bool:
    """Return whether both came at the same step of the training: its data is a suspect too."""
    return same_place(one.position.step, other.position.step)


def same_place(one: int | None, other: int | None) -> bool:
    """Return whether two steps are one, as far as ranks report; never where one is not known."""
    return one is not None and other is not None and abs(one - other) <= _NEAR_STEPS


def ranks_with_one_frame(alerts: Sequence[Alert]) -> tuple[int, ...]:
    """Return the ranks that raised the same exception in the same frame of the job's code; the most frequent one."""
    found: dict[tuple[str, str], set[int]] = {}
    for alert in separate(alerts).roots:
        frame = str(alert.evidence.get("user_frame") or "")
        if frame and alert.rank is not None:
            found.setdefault((what(alert), frame), set()).add(alert.rank)
    most = sorted(found.values(), key=len)[-1:]
    return tuple(sorted(most[0])) if most else ()


def _own_step(root: Alert, jump_steps: int) -> int | None:
    """Return the last step before the failure, as its alert names it; None: it names none."""
    step = root.evidence.get("step")
    if not isinstance(step, int):
        return None
    before = {AlertKind.RANK_EXIT: 0, AlertKind.NON_FINITE: 1, AlertKind.METRIC_JUMP: jump_steps}.get(
        root.kind
    )
    return None if before is None else max(0, step - before)


def _placed(one: Signature) -> bool:
    return one.rank is not None or one.machine is not None


def _different_ranks_of_one_machine(one: Signature, other: Signature) -> bool:
    known = one.rank is not None and other.rank is not None
    return known and one.rank != other.rank and one.machine is not None and one.machine == other.machine


def _same_machine(one: Signature, other: Signature) -> bool:
    if one.rank is not None and one.rank == other.rank:
        return True
    if one.machine is not None and one.machine == other.machine:
        return True
    return bool(one.domain) and one.domain == other.domain


def _root(alerts: Sequence[Alert]) -> Alert | None:
    """Return the alert that shows what failed: a number, a rank's own cause, else any that is no cascading failure."""
    for kind in (AlertKind.NON_FINITE, AlertKind.METRIC_JUMP):
        if numbers := [alert for alert in alerts if alert.kind is kind]:
            # Numbers are of all ranks: the first reporter proves nothing, the first step counts.
            first = min(numbers, key=lambda alert: number(alert.evidence.get("step")))
            return first.model_copy(update={"rank": None, "machine": None})
    if roots := separate(alerts).roots:
        return roots[0]
    other = [alert for alert in alerts if alert.kind not in (AlertKind.RANK_EXIT, AlertKind.RANK_LOG)]
    return other[0] if other else None


def what(root: Alert) -> str:
    """Return what failed according to an alert: signal, exception, exit status, or its kind."""
    evidence = root.evidence
    if root.kind is AlertKind.NON_FINITE:
        return "not finite"
    if root.kind is AlertKind.METRIC_JUMP:
        return f"{evidence.get('metric', 'loss')}{_JUMP}"
    if root.kind is AlertKind.MANUAL:
        return str(evidence.get("class") or IncidentClass.JOB_CRASH)
    if root.kind is not AlertKind.RANK_EXIT:
        return root.kind.value
    named = evidence.get("signal") or str(evidence.get("error_type") or "").rpartition(".")[2]
    return str(named or (f"exit status {evidence['exit_code']}" if evidence.get("exit_code") else ""))
