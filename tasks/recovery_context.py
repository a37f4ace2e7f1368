"""The recovery context: a playbook's knowledge of its incident, from step to step; and the rule "never twice"."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import Field, PrivateAttr

from holdfast.models.alert import Incident, RecordedClass
from holdfast.models.base import Frozen
from holdfast.models.history import Action
from holdfast.models.job import Job
from holdfast.models.machine import Machine
from holdfast.models.names import IncidentId, JobName, MachineName, Rank
from holdfast.operations.context import Context
from holdfast.operations.once import Actor
from holdfast.policies.escalate import waits
from holdfast.policies.restore import kept_processes
from holdfast.storage.ledger import Ledger


class Request(Frozen):
    """The parameter of every playbook. The gateway sends ``id`` and ``attempt``; a person names a job."""

    id: IncidentId | None = Field(None, description="Incident to work on. Empty: open a new one for JOB.")
    attempt: int = Field(1, ge=1, description="Grows with every run for the same incident.")
    job: JobName | None = Field(None, description="Job, when there is no incident yet.")
    machine: MachineName | None = Field(
        None, description="Suspected machine, if you have one; machine-fault and planned-move need it."
    )
    rank: Rank | None = Field(None, description="Suspected rank, if you have one.")
    reason: str = Field("", description="Why you start this; goes into the incident report.")
    last_good_step: int | None = Field(None, ge=0, description="Restore nothing newer than this step.")
    machines: int | None = Field(
        None, ge=0, description="Number of machines, where the playbook changes it (scale-job); 0: to zero."
    )


class RecoveryContext(Frozen):
    """An incident under treatment. Steps receive it and never change it."""

    incident_id: IncidentId
    attempt: int
    job: JobName
    incident_class: RecordedClass
    broken_epoch: int
    """The epoch to recover from: the one the fault hit, or the newest that an attempt started in vain."""
    machine: MachineName | None = None
    rank: Rank | None = None
    last_good_step: int | None = None
    bound_by_hand: bool = False
    """Whether a person named ``last_good_step`` for this run: alerts do not change it."""
    accused: tuple[MachineName, ...] = ()
    """Machines that the alerts surely accuse; empty when they are so many that a human must look first."""
    returned: tuple[MachineName, ...] = ()
    """Machines that the alerts surely accuse in a former life: they restarted since."""
    observe_only: bool = False
    went_on: int = 0
    """The epoch that was started before the diagnosis was over, when it is to be stopped again; 0: there is none."""
    round: int = 0
    """Times that the incident was taken up again after a wait: every check is repeated then."""
    lease: str = ""
    """The name under which this run holds the job's lease; every act shows it."""
    _ctx: Context = PrivateAttr()

    def within(self, ctx: Context) -> RecoveryContext:
        """Return the case with the services that its steps use."""
        self._ctx = ctx
        return self

    @property
    def again(self) -> bool:
        """Whether a former attempt brought the job up and it failed again."""
        return self.broken_epoch > max(self.incident.epoch, self.went_on)

    @property
    def life(self) -> str:
        """Part of the keys of actions that are done once for the broken epoch and this round."""
        return f"e{self.broken_epoch}{self.again_after}"

    @property
    def again_after(self) -> str:
        """The round within keys; empty in the first one."""
        return f"r{self.round}" if self.round else ""

    @property
    def stands(self) -> bool:
        """Whether the job stands since an earlier round of this incident: none of it trains."""
        return bool(self.round and self.done("pause"))

    @property
    def ctx(self) -> Context:
        """The services that the run was given."""
        return self._ctx

    @property
    def ledger(self) -> Ledger:
        """The ledger for what this run changes: refused with ``StaleError`` once another run acts on the job."""
        return self.ctx.ledger.holding(self.incident_id, self.job, self.lease)

    @property
    def actor(self) -> Actor:
        """The one that acts: this run, under its lease."""
        return Actor(self.ctx, self.incident_id, self.job, self.attempt, self.lease)

    @property
    def incident(self) -> Incident:
        """The incident as it stands in the ledger now."""
        return self.ctx.ledger.incident(self.incident_id)

    @property
    def beside(self) -> bool:
        """Whether the job trains on whatever comes of the incident."""
        return waits.beside(self.incident_class, self.job_now().state)

    @property
    def keep_s(self) -> float:
        """How long processes of ranks may wait for their next epoch; 0: all are started again."""
        return kept_processes.wait_s(self.ctx.policy.keep_processes, self.incident_class, again=self.again)

    @property
    def values(self) -> dict[str, Any]:
        """Values from the policy file for a playbook of another package; empty for the built-in ones."""
        entry = self.ctx.policy.playbooks.get(self.incident_class)
        return dict(entry.values) if entry else {}

    def job_now(self) -> Job:
        """Return the job as it stands in the ledger now."""
        return self.ctx.ledger.job(self.job)

    def machines_now(self) -> list[Machine]:
        """Return the job's machines, by slot."""
        return self.ctx.ledger.machines_named(self.job_now().machines)

    def incarnations(self) -> dict[str, str]:
        """Return the present incarnations of the job's machines: a verdict is about them, not about later ones."""
        return {machine.name: machine.incarnation for machine in self.machines_now()}

    def done(self, kind: str) -> list[Action]:
        """Return finished actions of one kind, oldest first."""
        return [
            action for action in self.ctx.ledger.actions(self.incident_id, kind) if action.state == "done"
        ]

    def begun(self, kind: str, target: str) -> Mapping[str, Any]:
        """Return the intent with which an action was begun first; empty: it was not.

        What an act changes is read here when it is repeated: the run before it may have been killed in its middle.
        """
        key = f"{kind}:{target}"
        actions = self.ctx.ledger.actions(self.incident_id, kind)
        return next((action.intent for action in actions if action.key == key), {})

    async def once(
        self, kind: str, target: str, intent: dict[str, Any], act: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        """Do ``act`` unless this incident has it done already; return its result either way.

        The intent is in the ledger before ``act`` starts, the result after it returned: a playbook that was
        killed anywhere and runs again does only what is missing. ``act`` must itself be safe to repeat.

        Raises:
            StaleError: a newer attempt has taken this incident over, or another run the job's lease.
        """
        return await self.actor.once(kind, target, intent, act)
