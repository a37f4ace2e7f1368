"""Questions that playbooks ask operators: answered from the command line, or by the policy when no operator answers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast.deployments.gateway.runs.flow_runs import Runs
from holdfast.deployments.gateway.runs.stillness import RunStillness
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import RefusedError, UnavailableError
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.history import Action, ActionState
from holdfast.models.machine import Machine, Scope
from holdfast.policies.escalate import approval, overtake


def asked(actions: Sequence[Action]) -> Action | None:
    """Return the newest question that is not answered; None: there is none."""
    open_ones = [a for a in actions if a.kind == "approve" and a.state is ActionState.INTENT]
    return open_ones[-1] if open_ones else None


def question(incident: Incident, actions: list[Action]) -> dict[str, Any] | None:
    """Return the question that the incident's playbook asks a person, if there is one."""
    action = asked(actions) if incident.state is IncidentState.OPEN else None
    if action is None:
        return None
    return {
        "incident": incident.id,
        "job": incident.job,
        "question": str(action.intent.get("question", "")),
        "since": action.begun_at,
        "deadline": action.intent.get("deadline"),
        "default": action.intent.get("default"),
    }


class Approvals:
    """Writes the answer into the ledger first, then resumes the flow run; repeated until the run goes on."""

    def __init__(self, site: Site, runs: Runs) -> None:
        self._site = site
        self._runs = runs
        self._open = RunStillness()

    async def answer(self, incident_id: str, approve: bool, by: str, reason: str) -> Incident:
        """Take a person's answer.

        Raises:
            UnknownError: no such incident.
            RefusedError: it asks nothing, or another answer was there first.
        """
        incident = await asyncio.to_thread(self._site.ledger.incident, incident_id)
        actions = await asyncio.to_thread(self._site.ledger.actions, incident_id, "approve")
        question = asked(actions)
        if incident.state is not IncidentState.OPEN or question is None:
            raise RefusedError(f"incident {incident_id} ({incident.state}) asks for no approval")
        given = await self._give(incident, question, {"approve": approve, "by": by, "reason": reason})
        if bool(given.get("approve")) is not approve:
            first = "approved" if given.get("approve") else "refused"
            raise RefusedError(
                f"incident {incident_id} was {first} by {given.get('by')} just before: that stands"
            )
        return incident

    async def approve_by_evicting(
        self, machine: Machine, by: str, reason: str, scope: Scope
    ) -> Incident | None:
        """Take a person's request to evict a machine as the yes to an open question about it; None: there is none."""
        acting = await asyncio.to_thread(self._site.ledger.acting, machine.job or "", evidence=False)
        if (
            acting is None or acting.incident_class in overtake.TRAINS_ON
        ):  # a person's request ends the work on those
            return None
        question = asked(await asyncio.to_thread(self._site.ledger.actions, acting.id, "approve"))
        if question is None or question.intent.get("target") != machine.name:
            return None
        answer = {"approve": True, "by": by, "reason": reason, "scope": scope.value}
        await self._give(acting, question, answer)
        return acting

    async def look(self, incident: Incident, actions: Sequence[Action], resolved: str = "") -> None:
        """Check a suspended run: answer for its incident when the deadline has passed, or resume it if it was answered.

        ``resolved``: an alert of it that is over meanwhile, so that nothing has to be evicted for it.
        """
        question = asked(actions)
        if question is None:
            answered = [a for a in actions if a.kind == "approve"]
            if answered:
                await self._resume(incident, answered[-1].result)
        elif resolved:
            answer = {"approve": False, "by": "the monitor", "reason": f"{resolved} was resolved"}
            await self._give(incident, question, answer)
        elif self._open_s(question) > approval.within_s(
            question.intent, question.begun_at, self._site.policy.approval
        ):
            approve = question.intent.get("default") == "approve"
            reason = "no answer before the deadline"
            await self._give(
                incident, question, {"approve": approve, "by": "the policy file", "reason": reason}
            )

    def keep(self, incidents: Collection[str]) -> None:
        """Forget the questions of all other incidents."""
        self._open.keep(incidents)

    def _open_s(self, question: Action) -> float:
        """Return for how long it has been open: setting the wall clock neither answers it nor keeps it open."""
        clock = self._site.clock
        age_s = clock.now() - question.begun_at
        return self._open.since(question.incident_id, question.key, age_s, clock.monotonic())

    async def _give(self, incident: Incident, question: Action, answer: dict[str, Any]) -> Mapping[str, Any]:
        """Record the answer, unless there is one, and resume the run; return the one that stands."""
        ledger = self._site.ledger
        given = await asyncio.to_thread(ledger.finish, incident.id, question.key, answer)
        log.info("%s: %s: %s", incident.id, question.intent.get("question"), given.result)
        await self._resume(incident, given.result)
        return given.result

    async def _resume(self, incident: Incident, answer: dict[str, Any]) -> None:
        if incident.flow_run_id is None:
            return
        try:
            # The form of the question has no field for the scope; the playbook reads it in the ledger.
            form = {name: value for name, value in answer.items() if name != "scope"}
            await self._runs.resume(incident.flow_run_id, form)
        except UnavailableError as error:
            # The reconciler looks again: the run is suspended still.
            log.warning("%s: its run is not resumed yet: %s", incident.id, error)
