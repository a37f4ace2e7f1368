"""Open incidents compared with their runs, each second: Prefect runs nothing again by itself, this does."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence

from holdfast.deployments.gateway.api.approvals import Approvals
from holdfast.deployments.gateway.fleet.acts import JobActs
from holdfast.deployments.gateway.intake.requeue import Requeue
from holdfast.deployments.gateway.runs.dispatch import ALONE, Dispatcher
from holdfast.deployments.gateway.runs.flow_runs import PlaybookRun, RunPhase, Runs
from holdfast.deployments.gateway.runs.giving_up import GivingUp
from holdfast.deployments.gateway.runs.judge import (
    Again,
    Lapse,
    attempts_allowed,
    attempts_spent,
    backoff_s,
    why_again,
    why_alone,
    why_moot,
)
from holdfast.deployments.gateway.runs.stillness import RunStillness
from holdfast.deployments.gateway.runs.waiting import Waiting
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import StaleError, UnavailableError
from holdfast.models.alert import Incident, IncidentClass, IncidentState
from holdfast.models.history import Action
from holdfast.models.job import WAS_STOPPED, JobState
from holdfast.models.lease import JOB_LEASE_S
from holdfast.policies.counted import counted

AWAY_FACTOR = 2
"""Factor on ``offline_after_s``: a run that shows no sign for so long is started again without Prefect."""


class Reconciler:
    """Makes sure that every open incident has a playbook at work, or is closed."""

    def __init__(  # noqa: PLR0917
        self,
        site: Site,
        runs: Runs,
        dispatcher: Dispatcher,
        requeue: Requeue,
        acts: JobActs,
        waiting: Waiting,
    ) -> None:
        self._site = site
        self.giving_up = GivingUp(site, acts, waiting)
        self._waiting = waiting
        self._leases: dict[str, tuple[tuple[str, float] | None, float]] = {}
        """Of jobs whose run is on another host: the last sign of life, and when it came by our own clock."""
        self._approvals = Approvals(site, runs)
        self._runs = runs
        self._dispatcher = dispatcher
        self._requeue = requeue
        self._was_open: set[str] = set()
        self._still = RunStillness()

    async def tick(self) -> None:
        """Run one round."""
        ledger = self._site.ledger
        incidents = await asyncio.to_thread(ledger.incidents, state=IncidentState.OPEN, evidence=False)
        acting: dict[str, Incident] = {}
        for incident in reversed(incidents):
            acting.setdefault(incident.job, incident)
        still_open = {incident.id for incident in incidents}
        for gone in self._was_open - still_open:
            await self._requeue.closed(await asyncio.to_thread(ledger.incident, gone))
        self._was_open = still_open
        self._still.keep(still_open)
        self._approvals.keep(still_open)
        self._count(incidents)
        await asyncio.gather(*(self._look(incident) for incident in acting.values()))

    async def _look(self, incident: Incident) -> None:
        if self._dispatcher.busy(incident.id):
            return
        if incident.flow_run_id is None:
            await self._take_turn(incident)
            return
        try:
            run = await self._runs.read(incident.flow_run_id)
        except UnavailableError:
            await self._without_prefect(incident, self._dispatcher.prefect_away())
            return
        self._dispatcher.prefect_answered()
        # Only now: a run that just ended well closed its incident before that.
        fresh = await asyncio.to_thread(self._site.ledger.incident, incident.id)
        if fresh.state is IncidentState.OPEN and fresh.flow_run_id == incident.flow_run_id:
            await self._compare(fresh, run)

    async def _take_turn(self, incident: Incident) -> None:
        """Take up an incident without a run: a new one, or one that waited for another of its job."""
        ledger = self._site.ledger
        job = await asyncio.to_thread(ledger.job, incident.job)
        versions = await asyncio.to_thread(ledger.versions, incident.job)
        others: Sequence[Incident] = ()
        if incident.incident_class in (IncidentClass.CODE_UPDATE, IncidentClass.SCALE_JOB):
            # Its alert names the version, or the size.
            incident = await asyncio.to_thread(ledger.incident, incident.id)
        if incident.incident_class is IncidentClass.CODE_UPDATE:
            others = await asyncio.to_thread(ledger.incidents, incident.job, IncidentState.OPEN)
        if why := why_moot(incident, job, versions, others):
            log.info("%s: dismissed: %s", incident.id, why)
            await asyncio.to_thread(
                ledger.set_incident, incident.id, state=IncidentState.DISMISSED, summary=why
            )
            return
        self._dispatcher.start(incident)

    async def _compare(self, incident: Incident, run: PlaybookRun | None) -> None:
        actions = await asyncio.to_thread(self._site.ledger.actions, incident.id, evidence=False)
        now = self._by_signs(incident, run, actions)
        if run is not None and run.phase is RunPhase.SUSPENDED:
            await self._approvals.look(incident, actions, self._waiting.resolved(incident))
        if run is not None and run.alive is None:
            run = run.model_copy(update={"alive": await self._renews(incident)})
        why = why_again(run, incident, actions, now, self._site.policy.gateway)
        if why is None:
            return
        ended = run is not None and run.phase in (RunPhase.FAILED, RunPhase.ENDED)
        if run is not None and ended and now - run.since < backoff_s(incident.attempt):
            return
        offline = any(reason.startswith(ALONE) for reason in incident.reasons)
        await self._again(incident, why, "" if offline else why_alone(run, incident, actions))

    def _by_signs(self, incident: Incident, run: PlaybookRun | None, actions: Sequence[Action]) -> float:
        """Return the time, reckoned from the newest sign: setting the wall clock neither ends nor prolongs a wait."""
        times = _times(actions)
        newest = max([run.since if run else 0.0, *times])
        signs = (incident.attempt, run and (run.id, run.phase, run.since), times)
        return newest + self._still_s(incident, signs, newest)

    def _still_s(self, incident: Incident, signs: Hashable, newest: float) -> float:
        """Return for how long the signs of its run have not changed; ``newest``: time of the newest sign."""
        clock = self._site.clock
        return self._still.since(incident.id, signs, clock.now() - newest, clock.monotonic())

    async def _renews(self, incident: Incident) -> bool | None:
        """Return whether a run on another host is alive, by the job's lease; None: it holds none (yet, or any more)."""
        lease = await asyncio.to_thread(self._site.ledger.job_lease, incident.job)
        mine = lease is not None and (lease.incident_id, lease.attempt) == (incident.id, incident.attempt)
        if lease is None or not mine:
            return None
        now, sign = self._site.clock.monotonic(), (lease.holder, lease.until)
        known, since = self._leases.get(incident.job, (None, now))
        if known != sign:
            since = now
            self._leases[incident.job] = sign, now
        return now - since < JOB_LEASE_S

    async def _without_prefect(self, incident: Incident, away_s: float) -> None:
        """Check whether a playbook still acts while Prefect is away: it survives that for a while."""
        patience = self._site.policy.gateway.offline_after_s
        if away_s < patience:
            return
        times = _times(await asyncio.to_thread(self._site.ledger.actions, incident.id, evidence=False))
        newest = max([incident.opened_at, incident.first_task_at or 0.0, *times])
        signs = (incident.attempt, incident.first_task_at, times)
        if self._still_s(incident, signs, newest) > AWAY_FACTOR * patience:
            words = f"Prefect is away, and its run shows no sign for {away_s:.0f} s"
            await self._again(incident, Again(Lapse.OFFLINE, words))

    async def _again(self, incident: Incident, why: Again, alone: str = "") -> None:
        ledger, limit = self._site.ledger, self._site.policy.gateway.max_attempts
        if (await asyncio.to_thread(ledger.job, incident.job)).state is JobState.STOPPED:
            # The gateway that stopped it did not come to close the incident, or the site was shut down.
            await asyncio.to_thread(
                ledger.set_incident, incident.id, state=IncidentState.DISMISSED, summary=WAS_STOPPED
            )
            return
        actions = await asyncio.to_thread(ledger.actions, incident.id, evidence=False)
        spent = attempts_spent(incident, actions)
        if spent >= attempts_allowed(incident, why.lapse, limit):
            await self.giving_up.give_up(
                incident,
                f"{counted(spent, 'attempt', 'attempts')} did not recover it (the last: {why.words})",
            )
            return
        try:
            newer = await asyncio.to_thread(ledger.next_attempt, incident.id, incident.attempt)
            newer = await asyncio.to_thread(ledger.set_incident, incident.id, flow_run_id=None)
        except StaleError:
            return
        self._site.metrics.attempts.labels(why.lapse).inc()
        log.warning("%s: attempt %d, because %s", incident.id, newer.attempt, why.words)
        self._dispatcher.start(newer, alone)

    def _count(self, incidents: list[Incident]) -> None:
        gauge = self._site.metrics.open_incidents
        gauge.clear()
        for incident in incidents:
            gauge.labels(incident.incident_class).inc()


def _times(actions: Sequence[Action]) -> tuple[float, ...]:
    """Return the time at which each action was done, or else began."""
    return tuple(action.done_at or action.begun_at for action in actions)
