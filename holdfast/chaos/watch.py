"""Follows one job by its agents and the ledger: the gateway may be what is broken."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import httpx

from holdfast import secret, tls
from holdfast.chaos.report import JobSeen
from holdfast.deployments.local.services import Service
from holdfast.errors import HoldfastError
from holdfast.models.agent import AgentState
from holdfast.models.alert import IncidentState
from holdfast.models.job import ENDED, Job
from holdfast.models.roles import TRAINER, ReplicaPhase
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger

_TIMEOUT_S = 2.0


class JobWatch:
    """``seen`` grows with every look."""

    def __init__(self, settings: Settings, ledger: Ledger, job: str, services: Sequence[Service]) -> None:
        self.seen: list[JobSeen] = []
        self.job: Job = ledger.job(job)
        self._ledger, self._services = ledger, services
        self._tls = tls.of(settings)
        self._http = httpx.Client(
            headers={"Authorization": secret.of(settings).header},
            timeout=_TIMEOUT_S,
            trust_env=False,
            **self._tls.http(),
        )

    def close(self) -> None:
        """End its connections."""
        self._http.close()

    def look(self) -> JobSeen:
        """Return the job now; what does not answer keeps what was known of it."""
        try:
            self.job = self._ledger.job(self.job.name)
            states = [self._state(name) for name in self.job.machines]
            step = max(self._ledger.max_step(self.job.name), *map(self._step, states))
            whole = self._has_replicas(states)
        except HoldfastError:
            step, whole = 0, False
        last = self.seen[-1].step if self.seen else 0
        well = whole and all(each.healthy() for each in self._services)
        now = JobSeen(at=time.time(), step=max(step, last), well=well)
        self.seen.append(now)
        return now

    def is_over(self) -> bool:
        """Return whether the job has ended."""
        return self.job.state in ENDED

    def is_calm(self, since: float) -> bool:
        """Return whether nothing is open, all services are well, and the job made steps not made at ``since``."""
        before = max((row.step for row in self.seen if row.at <= since), default=0)
        try:
            open_ = self._ledger.incidents(job=self.job.name, state=IncidentState.OPEN, evidence=False)
        except HoldfastError:
            return False
        new = self.is_over() or self.seen[-1].step > before + 1
        return not open_ and new and self.seen[-1].well

    def _has_replicas(self, states: Sequence[AgentState | None]) -> bool:
        """Return whether as many replicas of each role run, or are done, as the job wants."""
        there = Counter(
            each.role
            for state in states
            for each in (state.replicas if state is not None else ())
            if each.job == self.job.name and (each.pid or each.phase is ReplicaPhase.DONE)
        )
        wanted = {name: role.replicas for name, role in self.job.spec.roles.items() if name != TRAINER}
        return self.is_over() or all(there[name] >= number for name, number in wanted.items())

    def _step(self, state: AgentState | None) -> int:
        runs = state.jobs if state is not None else ()
        return max((rank.step for run in runs if run.job == self.job.name for rank in run.ranks), default=0)

    def _state(self, machine: str) -> AgentState | None:
        try:
            address = self._ledger.machine(machine).address
            url = f"{self._tls.scheme}://{address}/v1/state"
            answer = self._http.get(url, params={"shards": "no"}, extensions=self._tls.to_agent())
            answer.raise_for_status()
            return AgentState.model_validate_json(answer.content)
        except (httpx.HTTPError, HoldfastError, ValueError):
            return None
