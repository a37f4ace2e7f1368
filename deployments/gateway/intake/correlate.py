"""From alerts to incidents: refuse, recognise, join, settle, have opened. One job at a time, in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace

from holdfast.deployments.gateway.detectors.probe import Prober
from holdfast.deployments.gateway.fleet.facts import Facts, gather
from holdfast.deployments.gateway.fleet.spares import Spares
from holdfast.deployments.gateway.intake.correlation_window import CorrelationWindow
from holdfast.deployments.gateway.intake.dead_search import DeadSearch
from holdfast.deployments.gateway.intake.deduplicator import Deduplicator, repeated_s
from holdfast.deployments.gateway.intake.job_queue import JobQueue
from holdfast.deployments.gateway.intake.late_signs import join_waiting
from holdfast.deployments.gateway.intake.observations import Observations
from holdfast.deployments.gateway.intake.opening import Opening, Starter
from holdfast.deployments.gateway.intake.outcome import Outcome, What
from holdfast.deployments.gateway.intake.refusals import why_watched
from holdfast.deployments.gateway.intake.signs import before
from holdfast.deployments.gateway.intake.starting_jobs import LEDGER_AGAIN_S, StartingJobs
from holdfast.deployments.gateway.site import Site
from holdfast.errors import HoldfastError, StaleError, UnavailableError, UnknownError
from holdfast.models.alert import (
    HUMAN_KINDS,
    MACHINE_KINDS,
    Alert,
    AlertKind,
    Classification,
    Incident,
    IncidentClass,
)
from holdfast.models.job import Job, JobState
from holdfast.models.machine import Machine
from holdfast.policies.classify import admission_filter, exits
from holdfast.policies.classify.decision import JobContext, NoAction, TooEarly
from holdfast.policies.classify.identity import identity
from holdfast.policies.classify.importance import Importance, importance
from holdfast.policies.classify.incident_class import classify
from holdfast.policies.escalate import by_hand, overtake

FULL_FOR_S = 0.5
"""Time for which an incident with enough evidence is not looked up again for more of it."""


class Correlator:
    """Takes alerts; what it opens goes to ``starter``."""

    def __init__(self, site: Site, starter: Starter, prober: Prober) -> None:
        self._site = site
        self.memory = Deduplicator()
        self.on_firing: Callable[[Alert], None] = lambda _: None
        """Called with every firing alert of the present, whatever its outcome."""
        self.over: Callable[[Alert], None] = lambda _: None
        """Called with every alert that is resolved."""
        self.ended: Callable[[Job], Collection[int]] = lambda _: ()
        """Ranks of the newest epoch of a job that ended with status 0, while others did not."""
        self.held_back: Callable[[str, IncidentClass, Collection[str]], str] = lambda *_: ""
        """Why no incident of a class about these machines is opened for a job for now; empty: one is."""
        self.of_role: Callable[[Alert, Machine, Job], Awaitable[Outcome]] = _concerns_no_rank
        """Takes the alerts about machines that a role of a job has for itself: ranks lose nothing with them."""
        self.keep: Callable[[Alert], bool] = lambda _: False
        """Called with an alert that waits for the end of a person's hold; whether it is new."""
        self.ending: set[str] = set()
        """Jobs whose hold is being ended: the ledger has them as paused until their ranks were let go."""
        self._spares = Spares(site)
        self._settling: dict[str, CorrelationWindow] = {}
        self.starting = StartingJobs(site, self.accept_all)
        self._opening = Opening(site, starter, self.memory)
        self._search = DeadSearch(site, prober, self.lost)
        self._observed = Observations(site.policy.classify.network_window_s)
        self._turns = JobQueue()
        self._full: dict[tuple[str, Importance], tuple[Incident, float]] = {}

    async def accept(self, alert: Alert) -> Outcome:
        """Take one alert.

        Raises:
            UnknownError: it names no job or machine, or one that is not there.
            NotFiringError: it is resolved or too old.
            StaleError: it is of an earlier epoch or incarnation.
            UnavailableError: the ledger does not answer; send it again.
        """
        try:
            outcome = await self._accept(alert)
        except UnavailableError:
            raise
        except HoldfastError:
            self._count(alert, What.REFUSED)
            raise
        self._count(alert, outcome.outcome)
        return outcome

    def now(self) -> float:
        """Return the gateway's clock."""
        return self._site.clock.now()

    async def accept_all(self, alerts: Iterable[Alert]) -> list[Outcome]:
        """Take several; a refused one does not keep the others out."""
        outcomes = []
        for alert in alerts:
            try:
                outcomes.append(await self.accept(alert))
            except UnavailableError:
                raise
            except HoldfastError as error:
                refused = Outcome(outcome=What.REFUSED, message=str(error), error=type(error).__name__)
                outcomes.append(refused)
        return outcomes

    async def _accept(self, alert: Alert) -> Outcome:
        site = self._site
        received_at = site.clock.now()
        if not alert.firing:
            self.over(alert)
        admission_filter.must_fire(alert, received_at, site.policy.classify.max_age_s)
        if alert.kind in MACHINE_KINDS:
            # Fixed before time, job and epoch are filled in: the next report of it will lack them too.
            alert = alert.model_copy(update={"fingerprint": identity(alert, site.policy.classify)})
        alert = admission_filter.as_of_now(alert, received_at)
        self.on_firing(alert)
        if owner := self._owner(alert, received_at):
            return Outcome(incident=owner, outcome=What.DUPLICATE, message=f"{owner} has this signal already")
        if more := self._more_of_the_same(alert, received_at):
            return more
        machine = site.fleet.machines.get(alert.machine or "")
        job_name = alert.job or (machine.job if machine else None)
        if job_name is None:
            if alert.machine is None:
                raise UnknownError(f"alert {alert.key!r} names neither a job nor a machine: name one")
            machine = await site.machine(alert.machine)
            admission_filter.must_be_present(alert, machine)
            if machine.job is None:
                return await self._spares.accept(alert, machine)
            job_name = machine.job
        if job_name not in site.fleet.jobs:
            await site.job(job_name)
        alert = alert.model_copy(update={"job": job_name})
        if job_name in self.starting.held:
            return self.starting.hold_back(alert)
        return await self._take_turn(alert, job_name, received_at)

    def _owner(self, alert: Alert, now: float) -> str | None:
        return self.memory.owner(alert, now, repeated_s(alert, self._site.fleet.machines.values()))

    async def _take_turn(self, alert: Alert, job: str, received_at: float) -> Outcome:
        if not exits.is_cascade(alert):
            async with self._turns.of_other(job, received_at):
                return await self._correlate(alert, received_at)
        if self._turns.cascading_crowded(job):
            return Outcome(outcome=What.SUPPRESSED, message="more lost peers at once than are recorded")
        async with self._turns.of_cascading(job):
            return await self._correlate(alert, received_at)

    async def _correlate(self, alert: Alert, received_at: float) -> Outcome:
        """Correlate under the job's lock: the job's facts are read again from the ledger."""
        name = alert.job or ""
        facts = await asyncio.to_thread(gather, self._site.ledger, name, alert.machine)
        if name in self.ending and facts.job.state is JobState.PAUSED:
            facts = replace(facts, job=facts.job.model_copy(update={"state": JobState.RUNNING}))
        admission_filter.must_be_present(alert, facts.machine)
        if facts.machine is not None and facts.machine.role and facts.machine.job == name:
            return await self.of_role(alert, facts.machine, facts.job)
        admission_filter.must_be_of_job(alert, facts.job, facts.machine)
        if alert.kind not in (AlertKind.UNRESTORABLE, AlertKind.PLANNED_MOVE):
            facts = await self._overtakes(facts.of_what_stops(), [alert])
        acting = facts.acting
        if owner := self._owner(alert, received_at):
            return Outcome(incident=owner, outcome=What.DUPLICATE, message=f"{owner} has this signal already")
        if acting and await self._may_join(alert, acting):
            with contextlib.suppress(StaleError):
                return await self._join(alert, acting)
            # It was closed meanwhile: the job as it is now counts.
            return await self._correlate(alert, received_at)
        admission_filter.must_be_newest(alert, facts.job, facts.epoch_opened_at)
        if aside := await self._set_aside(alert, facts, received_at):
            return aside
        if alert.epoch is None:
            alert = alert.model_copy(update={"epoch": facts.job.epoch, "fingerprint": alert.key})
        return await self._take_in(facts, alert, received_at)

    async def _may_join(self, alert: Alert, acting: Incident) -> bool:
        """Return whether the playbook at work can take the alert into account; a person's wish has else its own."""
        if alert.kind not in HUMAN_KINDS:
            return not before(alert, acting)
        actions = await asyncio.to_thread(self._site.ledger.actions, acting.id, evidence=False)
        return by_hand.joins(alert, acting, actions)

    async def _take_in(self, facts: Facts, alert: Alert, received_at: float) -> Outcome:
        """Add the alert to those that wait for the others of one fault; alone, where an incident is open already."""
        name = facts.job.name
        if facts.acting:
            alone = CorrelationWindow(received_at)
            alone.add(alert, self._weigh(alert))
            return await self._decide(facts, alone)
        settling = self._settling.setdefault(name, CorrelationWindow(received_at))
        if not settling.add(alert, self._weigh(alert)):
            return Outcome(outcome=What.SETTLING, message="known, or more than are recorded")
        if exits.is_cascade(alert):
            self._search.look(facts.job, settling)
        return await self._decide(facts, settling, alert)

    async def _overtakes(self, facts: Facts, alerts: Iterable[Alert]) -> Facts:
        """Return the facts as for a job without an open incident, where an alert may end the work on it."""
        acting, policy = facts.acting, self._site.policy.classify
        if acting is None or acting.incident_class not in overtake.TRAINS_ON:
            return facts
        actions = await asyncio.to_thread(self._site.ledger.actions, acting.id, evidence=False)
        fresh = (alert for alert in alerts if not before(alert, acting))
        ends = any(overtake.may(alert, acting, actions, policy) for alert in fresh)
        return facts.of_what_overtakes() if ends else facts

    async def _set_aside(self, alert: Alert, facts: Facts, received_at: float) -> Outcome | None:
        """Keep or ignore an alert that the job's state forbids to act on now; None: it may be acted on."""
        if why := admission_filter.why_kept(alert, facts.job):
            # As one of the machine's present life, and else of the present epoch.
            known: dict[str, object] = {"fingerprint": alert.key}
            if facts.machine is not None:
                known["incarnation"] = facts.machine.incarnation
            if alert.kind not in MACHINE_KINDS:
                known["epoch"] = alert.epoch or facts.job.epoch
            kept = alert.model_copy(update=known)
            if self.keep(kept):
                await self._record(kept, None, f"{What.KEPT}: {why}")
            return Outcome(outcome=What.KEPT, message=why)
        if why := admission_filter.why_ignored(alert, facts.job, facts.last_state):
            if joined := await join_waiting(self._site, self.memory, alert, facts.job):
                return joined
            # A dead machine of a job that has ended is found dead again and again.
            if not self.memory.ignored_lately(alert.key, received_at):
                await self._record(alert, None, f"{What.IGNORED}: {why}")
            return Outcome(outcome=What.IGNORED, message=why)
        return None

    async def _join(self, alert: Alert, acting: Incident) -> Outcome:
        weight = self._weigh(alert)
        asked = alert.kind in HUMAN_KINDS
        if not asked and not self.memory.may_join(acting.id, weight):
            self._full[acting.job, weight] = (acting, self._site.clock.now() + FULL_FOR_S)
            return Outcome(incident=acting.id, outcome=What.SUPPRESSED, message="it has evidence enough")
        try:
            await asyncio.to_thread(self._site.ledger.join, acting.id, [alert])
        except StaleError:
            # It was closed while we looked: the sender's next report, or the next round, finds the job as it is.
            raise StaleError(f"incident {acting.id} was closed just now: send the alert again") from None
        # Not before: what the ledger did not take would be answered as known when it is sent again.
        self.memory.take(alert.key, acting.id)
        await self._record(alert, acting.id, What.JOINED)
        message = "done before it starts the job again" if asked else ""
        return Outcome(incident=acting.id, outcome=What.JOINED, message=message)

    def _more_of_the_same(self, alert: Alert, now: float) -> Outcome | None:
        """Answer an alert that would change nothing in an alert storm, without the ledger; None: it may matter."""
        incident, until = self._full.get((alert.job or "", self._weigh(alert)), (None, 0.0))
        if incident and now <= until and alert.epoch == incident.epoch and alert.kind not in HUMAN_KINDS:
            return Outcome(incident=incident.id, outcome=What.SUPPRESSED, message="it has evidence enough")
        settling = self._settling.get(alert.job or "")
        if settling and settling.full and exits.is_cascade(alert):
            return Outcome(outcome=What.SUPPRESSED, message="more lost peers than are recorded")
        return None

    async def _decide(
        self, facts: Facts, settling: CorrelationWindow, newest: Alert | None = None
    ) -> Outcome:
        """Ask the policy what the job's alerts mean, and do it."""
        job, now = facts.job, self._site.clock.now()
        alerts = list(settling.alerts.values())
        if self._root_may_wait(job.name, settling):
            return Outcome(outcome=What.SETTLING, message="the root cause may be among the alerts that wait")
        context = JobContext(
            job=job,
            now=now,
            received_at=settling.detected_at,
            unreachable=settling.still_gone(self._site.fleet.machines),
            doubtful=self._site.silent(job.machines),
            doubt_s=max([self._site.lease_s, *map(self._site.lease_of, self._site.fleet.of_job(job))]),
            ended=tuple(self.ended(job)),
            listening_since=self._site.listening_since,
            code_changed_at=facts.code_changed_at,
            meanwhile=overtake.taken_over(facts.yields) if facts.yields else "",
        )
        known = {alert.key for alert in alerts}
        seen = [*self._observed.of(job.name, job.epoch, now), *await self._opening.noted_by(facts.yields)]
        earlier = [a for a in seen if a.key not in known]
        decision = classify([*earlier, *alerts], context, self._site.policy)
        if isinstance(decision, TooEarly):
            settling.until = decision.until_s
            if newest:
                await self._record(newest, None, f"{What.SETTLING}: {decision.why}")
            return Outcome(outcome=What.SETTLING, message=decision.why)
        if self._settling.get(job.name) is settling:
            del self._settling[job.name]
        try:
            return await self._follow(facts, settling, decision, earlier, context)
        except (StaleError, UnavailableError) as error:
            # What was worked on ended while we looked, or the ledger is away: the next look finds the job as it is.
            again_s = LEDGER_AGAIN_S if isinstance(error, UnavailableError) else 0.0
            self._settling.setdefault(job.name, settling).until = self._site.clock.now() + again_s
            raise

    async def _follow(
        self,
        facts: Facts,
        settling: CorrelationWindow,
        decision: Classification | NoAction,
        earlier: Sequence[Alert],
        context: JobContext,
    ) -> Outcome:
        """Do what the policy decided about the alerts."""
        job, alerts = facts.job, list(settling.alerts.values())
        if isinstance(decision, Classification) and (
            why := self._held_back(job.name, decision, alerts)
            or await why_watched(self._site, job.name, decision, alerts)
        ):
            decision = NoAction(reason=why)
        if isinstance(decision, Classification):
            return await self._opening.open(facts, settling, decision, earlier, context)
        if facts.yields:
            return [await self._join(alert, facts.yields) for alert in alerts][-1]
        for alert in alerts:
            await self._record(alert, None, f"{What.IGNORED}: {decision.reason}")
        self._observed.add(job.name, alerts, context.now)
        return Outcome(outcome=What.IGNORED, message=decision.reason)

    def _held_back(self, job: str, found: Classification, alerts: Sequence[Alert]) -> str:
        """Return why no incident is opened for now; empty: one is, as for each size that a person asks for."""
        asked = any(each.kind is AlertKind.MANUAL and not each.evidence.get("grown") for each in alerts)
        if asked and found.incident_class is IncidentClass.SCALE_JOB:
            return ""
        named = {name for name in (found.machine, *(each.machine for each in alerts)) if name}
        return self.held_back(job, found.incident_class, named)

    def _root_may_wait(self, job: str, settling: CorrelationWindow) -> bool:
        """Return whether only cascading failures came so far, while another alert that came in time still waits."""
        since = self._turns.root_since(job)
        return (
            since is not None
            and since <= settling.until
            and all(exits.is_cascade(alert) for alert in settling.alerts.values())
        )

    # CorrelationWindow

    @property
    def settles(self) -> bool:
        """Some alerts wait for their root."""
        return bool(self._settling)

    async def settle(self) -> None:
        """Decide again about jobs whose time has come."""
        now = self._site.clock.now()
        for name, settling in list(self._settling.items()):
            if now < settling.detected_at:
                # The clock was set back: what is waited for would last so much longer.
                settling.detected_at = settling.until = now
            if now < settling.until:
                if job := self._site.fleet.jobs.get(name):
                    self._search.look(job, settling)
                continue
            async with self._turns.of_decision(name):
                if self._settling.get(name) is settling:
                    await self._settle(name, settling)

    async def _settle(self, name: str, settling: CorrelationWindow) -> None:
        facts = await asyncio.to_thread(gather, self._site.ledger, name, None)
        facts = await self._overtakes(facts, settling.alerts.values())
        ignored = any(
            admission_filter.why_ignored(a, facts.job, facts.last_state) for a in settling.alerts.values()
        )
        if facts.acting:
            for alert in list(settling.alerts.values()):
                await self._join(alert, facts.acting)
            del self._settling[name]  # only now: a ledger that is away loses none of them
        elif ignored:
            del self._settling[name]
        else:
            await self._decide(facts, settling)

    async def lost(
        self,
        machine: Machine,
        detail: str,
        *,
        peers: bool = False,
        missed_s: float = 0.0,
        silent: bool = False,
    ) -> Outcome:
        """Take the loss of a machine whose agent was found dead; ``silent``: it refused nothing, and may live."""
        alert = Alert(
            kind=AlertKind.MACHINE_LOST,
            job=machine.job,
            machine=machine.name,
            incarnation=machine.incarnation,
            at=self._site.clock.now(),
            evidence={
                "probe": detail,
                "missed_s": round(missed_s, 3),
                "peers_lost_it": peers,
                "silent": silent,
            },
        )
        (outcome,) = await self.accept_all([alert])
        return outcome

    # Bookkeeping

    def _weigh(self, alert: Alert) -> Importance:
        return importance(alert, self._site.policy.classify)

    def _count(self, alert: Alert, what: What) -> None:
        self._site.metrics.alerts.labels(alert.kind, what).inc()

    async def _record(self, alert: Alert, incident_id: str | None, outcome: str) -> None:
        await asyncio.to_thread(self._site.ledger.record_alert, alert, incident_id, outcome)


async def _concerns_no_rank(_: Alert, machine: Machine, job: Job) -> Outcome:
    why = f"machine {machine.name} of role {machine.role} carries no ranks of job {job.name}"
    return Outcome(outcome=What.IGNORED, message=why)
