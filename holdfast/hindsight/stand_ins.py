"""Stand-ins that answer, from the record, a playbook over a copy of the ledger. Nothing of the site is reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast import errors
from holdfast.clock import FakeClock
from holdfast.drivers.base import Supplied
from holdfast.errors import HoldfastError, LimitError, RecoveryError, StaleError, UnavailableError
from holdfast.hindsight.incident_record import Record
from holdfast.models.alert import IncidentState, Verdict
from holdfast.models.history import Action, ActionState
from holdfast.models.job import WAS_STOPPED
from holdfast.models.machine import MachineState, Scope
from holdfast.models.missing import Missing
from holdfast.operations.context import Act, Context
from holdfast.policies.config.policy import Policy
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger
from holdfast.storage.ledger.inputs import answered
from holdfast.storage.ledger.waits import AGAIN

CHANGING = frozenset({"evict", "swap", "shrink", "claim", "resize", "rollback", "skip", "update", "suspect"})
"""Kinds of actions that change which machines, code and states the job starts with."""
DECIDED = CHANGING | {"rung", "first"}
"""Kinds of actions that are done again, in the copy: the policy or the ledger decides their outcome."""
_NO_SUSPECT = Verdict().model_dump(mode="json")
_UNKNOWN: Mapping[str, dict[str, Any]] = {
    "pause": {"unreachable": [], "silent": []},
    "check": {"findings": []},
    "stacks": _NO_SUSPECT,
    "vote": _NO_SUSPECT,
    "replay": _NO_SUSPECT,
    "compare": {"changed": ""},
    "hold": {"held": False, "why": "not recorded"},
    "await": {"waited_for": "", "seconds": 0.0},
    "replenish": {"provisioned": []},
    "prove": {"found": []},
}
"""Assumption where the record has no answer."""
_MISSING = {"start": Missing.STATE, "await": Missing.SERVICE, "pause": Missing.CONTACT}


class PastLedger(Ledger):
    """The copy. A person's answer is the recorded one, or the policy's default for a question without an answer."""

    answer: Callable[[str, Mapping[str, Any]], dict[str, Any]]

    def begin(  # noqa: PLR0917
        self,
        incident_id: str,
        attempt: int,
        key: str,
        kind: str,
        intent: Mapping[str, Any],
        holder: str = "",
    ) -> Action:
        """Begin as the ledger's own method does; a question is answered at once."""
        action = super().begin(incident_id, attempt, key, kind, intent, holder)
        if kind == "approve" and action.state is not ActionState.DONE:
            return self.finish(incident_id, key, self.answer(key, intent))
        return action


class Hindsight(Context):
    """The steps' services over one incident's record."""

    def __init__(
        self, settings: Settings, clock: FakeClock, ledger: PastLedger, policy: Policy, record: Record
    ) -> None:
        super().__init__(settings, clock, ledger)
        self.__dict__ |= {"policy": policy, "driver": NoDriver(ledger), "store": NoStore()}
        self._record, self._copy, self._time = record, ledger, clock
        self._arrived_until = record.incident.opened_at
        self.assumed: dict[str, str] = {}
        """Keys of actions whose outcome is not from the record, and why."""
        ledger.answer = self._answer

    def agent(self, machine: object) -> Any:
        """Return an agent that does not answer."""
        return NoAgent()

    async def perform(self, action: Action, act: Act) -> dict[str, Any]:
        """Decide again what a policy decides; take machines' answers from the record."""
        known = self._record.action(action.key)
        self.until(known.begun_at if known else None)
        self._may_have_ended(known)
        if action.kind == "swap" and known and self._done_in_this_round(known):
            return self._seat(known)
        if action.kind in DECIDED:
            return await act()
        self._may_have_failed(known)
        return self._as_recorded(action, known)

    def _done_in_this_round(self, known: Action) -> bool:
        """Return whether the act succeeded in this round: one row holds a failure before a wait and its later end."""
        again = [each.begun_at for each in self._record.actions if each.kind == AGAIN]
        waited = sum(each.kind == AGAIN for each in self._copy.actions(self._record.incident.id))
        ends = again[waited] if waited < len(again) else float("inf")
        return known.state is ActionState.DONE and (known.done_at or 0.0) < ends

    def _as_recorded(self, action: Action, known: Action | None) -> dict[str, Any]:
        if action.kind in ("start", "verify") and (why := self._another_history(known)):
            self.assumed[action.key] = why
            return (
                self._started(action, known) if action.kind == "start" else {"epoch": action.intent["epoch"]}
            )
        if known is None or known.state is ActionState.INTENT:
            self.assumed[action.key] = "not recorded"
            return (
                self._started(action, None) if action.kind == "start" else dict(_UNKNOWN.get(action.kind, {}))
            )
        if known.state is ActionState.FAILED:
            raise _again(known)
        return self._started(action, known) if action.kind == "start" else known.result

    def _another_history(self, known: Action | None) -> str:
        """Return why the record does not apply any more: other machines, code or state than then; empty: it applies."""
        until = known.begun_at if known else float("inf")
        then = {each.key for each in self._record.actions if each.kind in CHANGING and each.begun_at <= until}
        now = {each.key for each in self._copy.actions(self._record.incident.id) if each.kind in CHANGING}
        return "" if then == now else "not recorded: other machines, code or state than in the record"

    def _started(self, action: Action, known: Action | None) -> dict[str, Any]:
        """Open the next epoch in the copy: from the recorded step, or from the newest step reached."""
        job = self._copy.job(self._record.incident.job)
        reached = self._copy.max_step(job.name)
        result = dict(known.result) if known and known.result else {}
        epoch = self._copy.next_epoch(job.name)
        while epoch < int(result.get("epoch", 0)):  # the start gave up epochs before this one
            epoch = self._copy.next_epoch(job.name)
        step = int(result.get("step", reached))
        past = self._record.epoch(epoch) if action.key not in self.assumed else None
        if past and past.code_version != job.code_version:
            # A version that a person had shipped meanwhile rode on this restart; a later rollback may mark it.
            self._copy.add_version(job.name, past.code_version, past.code_version, "shipped meanwhile")
            job = self._copy.set_job(job.name, code_version=past.code_version)
        self._copy.open_epoch(
            job.name, epoch, step, job.code_version, job.machines, "hindsight", incident_id=action.incident_id
        )
        if past and past.last_step:
            self._copy.mark(job.name, epoch, past.last_step, self._time.now())
        reasons = ["which states machines held is not recorded"] if action.key in self.assumed else []
        return {"tier": None, "reasons": reasons, "restore": []} | result | {"epoch": epoch, "step": step}

    def _seat(self, known: Action) -> dict[str, Any]:
        """Seat the standby that took over then."""
        ledger, result = self._copy, known.result
        job = ledger.job(self._record.incident.job)
        machines = list(job.machines)
        machines[int(result["slot"])] = str(result["to"])
        ledger.set_machine(str(result["to"]), state=MachineState.ACTIVE, job=job.name)
        ledger.set_job(job.name, machines=machines)
        return result

    def _may_have_ended(self, known: Action | None) -> None:
        """End the incident where it was dismissed amid this action: it was handed over, or the job was stopped.

        Raises:
            StaleError: it ended there.
        """
        was = self._record.incident
        if known is None and was.summary == WAS_STOPPED and self._all_done():
            self._copy.set_incident(was.id, state=was.state, summary=was.summary)
            raise StaleError(f"incident {was.id}: the job was stopped before any further act")
        if known and known.state is ActionState.INTENT and was.state is IncidentState.DISMISSED:
            self._copy.set_incident(was.id, state=was.state, summary=was.summary)
            raise StaleError(f"incident {was.id} was dismissed amid {known.key}")

    def _all_done(self) -> bool:
        """Return whether every recorded act was made again."""
        again = {each.key for each in self._copy.actions(self._record.incident.id)}
        return all(each.key in again for each in self._record.actions)

    def _may_have_failed(self, known: Action | None) -> None:
        """Fail where the recorded attempt did: the next one began amid this action, and did it.

        Raises:
            RecoveryError: this attempt ended there.
        """
        number = self._copy.incident(self._record.incident.id).attempt
        next_at = self._record.attempt_at(number + 1)
        if known and next_at is not None and known.begun_at <= next_at < (known.done_at or 0.0):
            raise RecoveryError(f"attempt {number} ended amid {known.key}")

    def _answer(self, key: str, intent: Mapping[str, Any]) -> dict[str, Any]:
        known = self._record.action(key)
        self._may_have_ended(known)
        if known is not None and known.state is ActionState.DONE:
            self.until(known.done_at)
            self.be_as_at(answered(key))
            return known.result
        self.assumed[key] = "not recorded: no person was asked; the policy's default is taken"
        return {
            "approve": intent["default"] == "approve",
            "by": "the policy file",
            "reason": "no answer before the deadline",
        }

    def be_as_at(self, moment: str) -> None:
        """Have the job's machines restart, or be taken out, as they were in the record by that moment."""
        job = self._copy.job(self._record.incident.job)
        for name, incarnation in self._record.serving_at(moment).items():
            if name not in job.machines or not self._copy.machine(name).serves(job.name):
                continue
            if incarnation:
                self._copy.set_machine(name, incarnation=incarnation)
            else:
                self._copy.set_machine(name, state=MachineState.CORDONED, job=None)

    def pass_time(self, at: float | None) -> None:
        """Advance the clock to ``at``; never back."""
        if at is not None and at > self._time.now():
            self._time.advance(at - self._time.now())

    def until(self, at: float | None) -> None:
        """Advance the clock, and add the alerts that arrived and those that joined the incident meanwhile."""
        incident_id, now = self._record.incident.id, max(at or 0.0, self._time.now())
        for alert in self._record.arrived_between(self._arrived_until, now):
            self.pass_time(alert.recorded_at)
            self._copy.record_alert(alert, alert.incident_id, alert.outcome)
        self.pass_time(now)
        self._arrived_until = now
        self._copy.join(incident_id, self._record.joined_by(now))


def _again(known: Action) -> HoldfastError:
    """Return the recorded error."""
    name, _, message = str(known.result.get("error", "")).partition(": ")
    kind = getattr(errors, name, RecoveryError)
    if issubclass(kind, LimitError):
        return kind(message, _MISSING.get(known.kind, Missing.CHANGE))
    return kind(message) if issubclass(kind, HoldfastError) else RecoveryError(message)


class NoAgent:
    """An agent whose code is where it should be, and that answers nothing else."""

    async def prepare_code(self, command: object) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        async def unanswered(*_: object, **__: object) -> None:
            raise UnavailableError("hindsight asks no machine")

        return unanswered


class NoDriver:
    """Evicts in the copy only."""

    name = "hindsight"

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def machines(self) -> list[Supplied]:
        """Return no machines."""
        return []

    def evict(self, machine: str, scope: Scope, reason: str, incarnation: str = "") -> None:
        """Do nothing."""

    def provision(self, n: int, group: str = "") -> list[str]:
        """Return no machines: none arrives."""
        return []

    def release(self, machine: str, incarnation: str = "") -> None:
        """Do nothing."""

    def retire(self, machine: str, incarnation: str = "") -> None:
        """Do nothing."""

    def withdraw(self) -> None:
        """Do nothing."""


class NoStore:
    """S3 that does not answer."""

    def __getattr__(self, name: str) -> Any:
        def unanswered(*_: object, **__: object) -> None:
            raise UnavailableError("hindsight asks no object store")

        return unanswered
