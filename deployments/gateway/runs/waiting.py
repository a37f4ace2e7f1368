"""Incidents that met a limit, each second: is what they miss there, or their time come? Then they go on."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from holdfast.deployments.gateway.runs.dispatch import Dispatcher
from holdfast.deployments.gateway.runs.stillness import RunStillness
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import RefusedError, StaleError
from holdfast.models.alert import Alert, Incident, IncidentClass, IncidentState
from holdfast.models.job import Job, JobState
from holdfast.models.machine import Machine, MachineState, Scope
from holdfast.models.missing import Missing
from holdfast.models.wait import Wait
from holdfast.policies.classify import sure_signs
from holdfast.policies.escalate import waits
from holdfast.policies.pool.machine_groups import group_of
from holdfast.storage.ledger.inputs import taken_up

_REMEMBERED = 1000
"""Number of alerts remembered as resolved."""
_Fault = tuple[str, str | None, str, str]
"""Kind, machine, check and device."""
_RESOLVED = "resolved"
"""Recorded outcome of an alert that is over."""


class Waiting:
    """Makes sure that no incident waits for ever."""

    def __init__(self, site: Site, dispatcher: Dispatcher) -> None:
        self._site = site
        self._dispatcher = dispatcher
        self.launching: dict[str, list[Alert]] = {}
        """Jobs that a person starts at the moment; the correlator's."""
        self._resolved: OrderedDict[_Fault, tuple[float, str | None]] = OrderedDict()
        """When each was reported as over, and of which incarnation."""
        self._was_silent: set[str] = set()
        self._quiet: dict[tuple[str, IncidentClass], list[tuple[Wait, frozenset[str]]]] = {}
        """Waits of jobs that train on, each with the machines that its incident is about."""
        self._still = RunStillness()
        self.ask_again: Callable[[Incident], Awaitable[bool]] = _nothing_to_ask
        """Called with a size that a person asked for and that lacked machines; whether it need not wait any more."""

    async def tick(self) -> None:
        """Run one round."""
        listed = await asyncio.to_thread(self._site.ledger.waits)
        found = await asyncio.to_thread(self._site.ledger.machines) if listed else []
        machines = {each.name: each for each in found}
        quiet: defaultdict[tuple[str, IncidentClass], list[tuple[Wait, frozenset[str]]]] = defaultdict(list)
        for wait in listed:
            job = await self._site.job(wait.job)
            if wait.job in self.launching:
                continue
            incident = await asyncio.to_thread(self._site.ledger.incident, wait.incident_id)
            if _obsolete(wait, incident, job):
                await asyncio.to_thread(self._site.ledger.end_wait, wait.incident_id)
            elif why := waits.due(wait, await self._facts(wait, incident, job, machines)):
                await self._again(wait, incident, why)
            elif wait.runs_on and not _is_wish(wait, incident):
                quiet[wait.job, incident.incident_class].append((wait, _machines(incident)))
        self._quiet = dict(quiet)
        self._was_silent &= {wait.incident_id for wait in listed}
        self._still.keep({wait.incident_id for wait in listed})

    def held_back(self, job: str, incident_class: IncidentClass, machines: Collection[str]) -> str:
        """Return why no further incident of this class is opened for a job that runs on; empty: it is.

        Args:
            job: the job's name.
            incident_class: of the incident.
            machines: named by its alerts; one that no waiting incident is about is not held back.
        """
        waiting = self._quiet.get((job, incident_class), [])
        if not waiting or not set(machines) <= frozenset[str]().union(*(known for _, known in waiting)):
            return ""
        wait, _ = next((each for each in waiting if each[1] & set(machines)), waiting[0])
        return f"{wait.incident_id} has it already and waits: {wait.why}"

    def note_resolved(self, alert: Alert) -> None:
        """Note a monitor's report that a fault is over; the ledger keeps it for the incidents that it concerns."""
        self._remember(alert, self._site.clock.now())
        if alert.machine:
            self._site.spawn(self._keep(alert), f"resolved {alert.key}")

    async def resume(self) -> None:
        """Load the resolved alerts that an earlier gateway received."""
        for incident in await self._unsettled():
            recorded = await asyncio.to_thread(self._site.ledger.alerts, incident.id)
            for alert in recorded:
                if not alert.firing:
                    self._remember(alert, alert.recorded_at)

    def _remember(self, alert: Alert, at: float) -> None:
        key = _fault(alert)
        self._resolved[key] = max((at, alert.incarnation), self._resolved.get(key, (0.0, None)), key=_when)
        self._resolved.move_to_end(key)
        while len(self._resolved) > _REMEMBERED:
            self._resolved.popitem(last=False)

    async def _keep(self, alert: Alert) -> None:
        for incident in await self._unsettled():
            if any(_fault(alert) in _faults(each) for each in incident.alerts):
                await asyncio.to_thread(self._site.ledger.record_alert, alert, incident.id, _RESOLVED)

    async def _unsettled(self) -> list[Incident]:
        """Return the incidents that are worked on or wait: an alert's end may matter to them."""
        ledger = self._site.ledger
        working = await asyncio.to_thread(ledger.incidents, state=IncidentState.OPEN)
        waits = await asyncio.to_thread(ledger.waits)
        return [*working, *[await asyncio.to_thread(ledger.incident, each.incident_id) for each in waits]]

    def resolved(self, incident: Incident) -> str:
        """Describe an alert of the incident that was reported as over since; empty: none.

        Nor where another sign against its machine stands: of the same kind, or one that proves a fault by itself.
        """
        classify = self._site.policy.classify
        standing = {
            (each.machine, each.kind if not sure_signs.is_sure(each, classify) else None)
            for each in incident.alerts
            if not self._is_over(each, incident.opened_at)
        }
        for alert in incident.alerts:
            stands = standing & {(alert.machine, None), (alert.machine, alert.kind)}
            if alert.machine and self._is_over(alert, incident.opened_at) and not stands:
                return f"{alert.kind.value} of {alert.machine}"
        return ""

    def _is_over(self, alert: Alert, since: float) -> bool:
        ends = (self._resolved.get(key, (0.0, None)) for key in _faults(alert))
        return any(at >= since and (not life or alert.incarnation in (None, life)) for at, life in ends)

    async def approves(self, incident_id: str) -> bool:
        """Return whether the incident waits for an approval that was not given in time."""
        wait = await asyncio.to_thread(self._site.ledger.last_wait, incident_id)
        open_ones = {each.incident_id for each in await asyncio.to_thread(self._site.ledger.waits)}
        return wait is not None and wait.missing is Missing.APPROVAL and incident_id in open_ones

    async def approve(self, incident_id: str, by: str, reason: str, scope: Scope | None = None) -> Incident:
        """Take a person's late approval, with the scope of the eviction where the person named one.

        Raises:
            RefusedError: it waits no longer.
        """
        ledger = self._site.ledger
        actions = await asyncio.to_thread(ledger.actions, incident_id, evidence=False)
        target = next(str(a.intent.get("target", "")) for a in reversed(actions) if a.kind == "approve")
        try:
            incident = await asyncio.to_thread(ledger.take_up, incident_id, f"approved by {by}")
        except StaleError as error:
            raise RefusedError(str(error)) from None
        rounds = 1 + sum(action.kind == "again" for action in actions)
        key, answer = f"approve:{target}r{rounds}", {"approve": True, "by": by, "reason": reason}
        if scope is not None:
            answer["scope"] = scope.value
        # Whole, as the playbook writes it: if this ends before the answer is recorded, its run asks once more.
        policy = self._site.policy.approval
        asked = next(a.intent.get("question", "") for a in reversed(actions) if a.kind == "approve")
        intent = {
            "question": asked,
            "target": target,
            "deadline": self._site.clock.now() + policy.deadline_s,
            "default": policy.default,
        }
        await asyncio.to_thread(ledger.begin, incident_id, incident.attempt, key, "approve", intent)
        await asyncio.to_thread(ledger.finish, incident_id, key, answer)
        await self._start(incident)
        return incident

    async def put(self, incident: Incident, why: str) -> None:
        """Have an incident whose attempts are spent wait: it fails for now, and is tried again at a set time."""
        outlook = await self._put(incident, why, runs_on=False)
        await asyncio.to_thread(
            self._site.ledger.give_up, incident.id, f"{why}: a human must look. {outlook}"
        )

    async def leave_running(self, incident: Incident, why: str) -> None:
        """Close an incident whose attempts are spent, and whose job trains: only the incident needs a person."""
        ledger, summary = self._site.ledger, await self._put(incident, why, runs_on=True)
        rounds = len(await asyncio.to_thread(ledger.actions, incident.id, "again"))
        found = (await asyncio.to_thread(ledger.inputs, incident.id)).get(taken_up(rounds), {}).get("job", {})
        state = JobState.PAUSED if found.get("state") == JobState.PAUSED else JobState.RUNNING
        if (await asyncio.to_thread(ledger.job, incident.job)).state is JobState.RECOVERING:
            await asyncio.to_thread(ledger.set_job, incident.job, state=state, unless=JobState.STOPPED)
        await asyncio.to_thread(
            ledger.end_incident,
            incident.id,
            IncidentState.NEEDS_HUMAN,
            f"{why}: a human must look. {summary}",
            self._site.clock.now(),
        )

    async def _put(self, incident: Incident, why: str, *, runs_on: bool) -> str:
        """Record the wait before the incident is closed; return what people can do."""
        ledger, now = self._site.ledger, self._site.clock.now()
        before = await asyncio.to_thread(ledger.last_wait, incident.id)
        wait = Wait(
            incident_id=incident.id,
            job=incident.job,
            missing=Missing.RUNS,
            why=why,
            since=now,
            next_at=now,
            times=before.times + 1 if before else 1,
            runs_on=runs_on,
        )
        seen = waits.outlook(wait, None, self._site.policy.again)
        await asyncio.to_thread(ledger.put_wait, seen.wait)
        return seen.message

    async def _facts(
        self, wait: Wait, incident: Incident, job: Job, machines: Mapping[str, Machine]
    ) -> waits.WaitFacts:
        ledger = self._site.ledger
        mine = [machines[name] for name in job.machines if name in machines]
        gone = [each.name for each in mine if not each.serves(job.name)]
        since = await self._asked_at(wait) if wait.missing is Missing.APPROVAL else wait.since
        back = [each.name for each in mine if each.registered_at > since]
        if wait.missing in (Missing.APPROVAL, Missing.EVICTIONS):
            back = [name for name in back if name in {alert.machine for alert in incident.alerts}]
        return waits.WaitFacts(
            now=self._now(wait),
            job_state=job.state,
            lacking=len(gone),
            standbys=self._replacements(gone or list(job.machines[:1]), machines.values()),
            silent=self._silent(wait, job),
            back=back[0] if back else "",
            new_version=await asyncio.to_thread(ledger.pending_version, job.name) or "",
            resolved=self.resolved(incident),
            at_fault=await self._at_fault(wait, mine),
        )

    async def _at_fault(self, wait: Wait, mine: Sequence[Machine]) -> str:
        """Return a machine, as it serves the job, of which a sure sign came since an unknown cause is waited for.

        Not where the sign is over, nor where more machines show one than may go at once.
        """
        if wait.missing not in (Missing.CHANGE, Missing.RUNS):
            return ""
        alerts = await asyncio.to_thread(self._site.ledger.alerts, wait.incident_id)
        new = [each for each in alerts if each.recorded_at > wait.since and each.firing]
        new = [each for each in new if not self._is_over(each, each.recorded_at)]
        present = {each.name: each.incarnation for each in mine}
        found = sure_signs.find(sure_signs.of_present(new, present), self._site.policy.classify)
        most = self._site.policy.aggregate.sure_limit(len(mine))
        return next(iter(found), "") if len(found) <= most else ""

    def _now(self, wait: Wait) -> float:
        """Return the time, reckoned from when the wait began: setting the wall clock neither ends nor prolongs it."""
        clock = self._site.clock
        age_s = clock.now() - wait.since
        return wait.since + self._still.since(
            wait.incident_id, (wait.since, wait.times), age_s, clock.monotonic()
        )

    async def _asked_at(self, wait: Wait) -> float:
        """Return when the question was asked: a machine may have restarted while it was open."""
        actions = await asyncio.to_thread(self._site.ledger.actions, wait.incident_id, "approve")
        asked_at = [action.begun_at for action in actions]
        return min(asked_at[-1], wait.since) if asked_at else wait.since

    def _replacements(self, gone: Sequence[str], machines: Iterable[Machine]) -> int:
        """Count the standbys of the kind of those that are gone."""
        pool = self._site.policy.spare_pool
        groups = {group_of(name, pool) for name in gone} if pool.groups else None
        return sum(
            each.state is MachineState.STANDBY and (groups is None or group_of(each.name, pool) in groups)
            for each in machines
        )

    def _silent(self, wait: Wait, job: Job) -> bool:
        """Return whether a machine is silent, or none ever was: only one that was silent and came back counts."""
        if self._site.silent(job.machines):
            self._was_silent.add(wait.incident_id)
            return True
        return wait.incident_id not in self._was_silent

    async def _again(self, wait: Wait, incident: Incident, why: str) -> None:
        if _is_wish(wait, incident) and not await self.ask_again(incident):
            if wait.next_at <= (now := self._now(wait)):
                later = wait.model_copy(update={"since": now, "times": wait.times + 1})
                seen = waits.outlook(later, None, self._site.policy.again)
                await asyncio.to_thread(self._site.ledger.put_wait, seen.wait)
            return
        if wait.runs_on:
            log.info("%s: %s: further signals of the job count again", wait.incident_id, why)
            await asyncio.to_thread(self._site.ledger.end_wait, wait.incident_id)
            return
        try:
            incident = await asyncio.to_thread(self._site.ledger.take_up, wait.incident_id, why)
        except StaleError as error:
            log.info("%s", error)
            await asyncio.to_thread(self._site.ledger.end_wait, wait.incident_id)
            return
        log.info("%s: taken up again: %s", wait.incident_id, why)
        await self._start(incident)

    async def _start(self, incident: Incident) -> None:
        await self._site.job(incident.job)
        self._site.metrics.attempts.labels("taken_up_again").inc()
        self._dispatcher.start(incident)


def _fault(alert: Alert) -> _Fault:
    """Return what a monitor reports twice, as it comes and as it is over."""
    check, device = (str(alert.evidence.get(name, "")) for name in ("check", "device"))
    return alert.kind.value, alert.machine, check, device


def _faults(alert: Alert) -> tuple[_Fault, _Fault]:
    """Return by what it may be reported as over: as it came, or by a monitor that names no check and device."""
    return _fault(alert), (alert.kind.value, alert.machine, "", "")


def _when(over: tuple[float, str | None]) -> float:
    return over[0]


def _machines(incident: Incident) -> frozenset[str]:
    named = {alert.machine for alert in incident.alerts if alert.machine}
    return frozenset(named | {incident.machine} if incident.machine else named)


async def _nothing_to_ask(_: Incident) -> bool:
    return True


def _is_wish(wait: Wait, incident: Incident) -> bool:
    """Return whether a person asked for a size that lacks machines: it stands until there are enough."""
    asked = any(not alert.evidence.get("grown") for alert in incident.alerts)
    scales = incident.incident_class is IncidentClass.SCALE_JOB
    return scales and asked and wait.runs_on and wait.missing is Missing.STANDBY


def _obsolete(wait: Wait, incident: Incident, job: Job) -> bool:
    """Return whether a person has intervened since: the job runs, was stopped or submitted again."""
    if _is_wish(wait, incident):  # a recovery meanwhile changes nothing of it
        return job.state in (JobState.STOPPED, JobState.DONE) or incident.opened_at < job.submitted_at
    stands = JobState.RUNNING if wait.runs_on else JobState.FAILED
    return job.state is not stands or incident.opened_at < job.submitted_at
