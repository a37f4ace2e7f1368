"""Machines that roles have for themselves: they leave when they are unfit, and standbys take their place.

They carry no ranks, so nothing here starts a playbook or touches the trainer. The ledger has each act before it is
done: a machine that is to leave is draining there, and one that was taken is active there in its role.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Container

from holdfast.deployments.gateway.fleet.spares import why_unfit
from holdfast.deployments.gateway.intake.outcome import Outcome, What
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import HoldfastError
from holdfast.models.alert import Alert, AlertKind, IncidentClass
from holdfast.models.job import Job, JobState
from holdfast.models.machine import Machine, MachineState, Scope
from holdfast.models.missing import Missing
from holdfast.models.role_rules import own_machines
from holdfast.operations import flaps
from holdfast.policies.escalate import breaker, modes
from holdfast.policies.pool.machine_groups import group_of

LEAVE_S = 90.0
"""Longest wait for replicas to end by themselves on a machine that leaves: their grace is a minute at most."""
TRY_AGAIN_S = 300.0
"""Pause before a machine is taken out once more, where that failed."""

TakeOut = Callable[[Machine, str, Scope], Awaitable[None]]
_Life = tuple[str, str]


class OwnMachines:
    """Looks at what is, not at what happened: a gateway that was away catches up."""

    def __init__(
        self,
        site: Site,
        take_out: TakeOut,
        have_left: Callable[[Machine], bool],
        require_sure: Callable[[], None] = lambda: None,
    ) -> None:
        """``have_left``: whether no replica runs on a machine any more."""
        self._site = site
        self._take_out = take_out
        self._have_left = have_left
        self._require_sure = require_sure
        self._drained: deque[tuple[str, float]] = deque(maxlen=1000)
        """Jobs that machines began to leave, and when."""
        self._leaving: dict[_Life, float] = {}
        """Since when machines are seen to leave, by a clock that is never set."""
        self._tried_at: dict[_Life, float] = {}
        self.launching: Container[str] = ()
        """Jobs that a person starts at the moment; the correlator's."""

    async def accept(self, alert: Alert, machine: Machine, job: Job) -> Outcome:
        """Take an alert about a machine that a role of ``job`` has for itself.

        A dead one is gone, until it registers again. One with a sure sign of a fault, that will be taken away, or that
        a person wants out, begins to leave. Whatever else it reports concerns no rank.

        Raises:
            HoldfastError: it restarted or left just now.
        """
        site, what = self._site, f"machine {machine.name} of role {machine.role} of job {job.name}"
        why = why_unfit(alert, site.policy.classify)
        if machine.state is not MachineState.ACTIVE or not why:
            leaves = f"{what} leaves already" if why else f"{what} carries no ranks: nothing is done for this"
            return await self._ignore(alert, leaves)
        lost = alert.kind is AlertKind.MACHINE_LOST
        if not lost and (forbidden := await self._forbidden(alert, machine, job)):
            return await self._ignore(alert, f"{what} stays: {forbidden}")
        self._require_sure()
        life = alert.incarnation or machine.incarnation
        if lost:
            await asyncio.to_thread(site.ledger.lose, machine.name, life, job.name, why)
        else:
            scope = Scope(alert.evidence.get("scope", Scope.CLUSTER))
            await asyncio.to_thread(site.ledger.drain, machine.name, life, scope, why, job.name)
            self._drained.append((job.name, site.clock.now()))
        await site.machine(machine.name)
        site.metrics.cordons.labels(alert.kind).inc()
        log.warning("%s %s: %s", what, "is gone" if lost else "leaves it", why)
        await asyncio.to_thread(site.ledger.record_alert, alert, None, What.CORDONED)
        # Before its replicas are known to have ended: they are placed on the machine that takes its place then.
        await self._fill(job)
        return Outcome(outcome=What.CORDONED, message=f"{what} {'is gone' if lost else 'leaves it'}: {why}")

    async def tick(self) -> None:
        """Run one round: take out what leaves, and replace what is lacking."""
        fleet, now = self._site.fleet, self._site.clock.monotonic()
        leaving = [
            each for each in fleet.machines.values() if each.role and each.state is MachineState.DRAINING
        ]
        lives = {(each.name, each.incarnation) for each in leaving}
        self._leaving = {life: self._leaving.get(life, now) for life in lives}
        self._tried_at = {life: at for life, at in self._tried_at.items() if life in lives}
        for machine in leaving:
            await self._finish(machine)
        for job in list(fleet.jobs.values()):
            if own_machines(job.spec.roles):
                await self._fill(job)

    async def _fill(self, job: Job) -> None:
        try:
            await self.fill(job)
        except HoldfastError as error:  # what is lacking stays so until the next round
            log.warning("machines for roles of job %s: %s", job.name, error)

    async def fill(self, job: Job) -> None:
        """Take standbys for the roles of a job that lack machines of their own; recoveries have the first choice."""
        trains = job.state in (JobState.RUNNING, JobState.PAUSED) and job.epoch > 0
        if not trains or job.name in self.launching or not self._lacking(job):
            return
        if await self._others_first(job):
            return
        self._require_sure()
        left = self._site.policy.elastic.keep_standbys
        await claim(self._site, job, self._lacking(job), keep=left)

    def _lacking(self, job: Job) -> dict[str, int]:
        """Return the machines that each role is to have for itself, of the roles that have fewer."""
        mine = [each.role for each in self._site.fleet.of_roles(job.name) if each.serves(job.name)]
        wanted = own_machines(job.spec.roles)
        return {role: number for role, number in wanted.items() if mine.count(role) < number}

    async def _others_first(self, job: Job) -> bool:
        """Return whether ranks need the standbys more: a recovery is worked on, or a job waits for a machine."""
        site = self._site
        recovers = [each.name for each in site.fleet.jobs.values() if each.state is JobState.RECOVERING]
        for name in (job.name, *recovers):
            # One that waits for a person may stay in recovery for days.
            if await asyncio.to_thread(site.ledger.acting, name, evidence=False) is not None:
                return True
        waits = await asyncio.to_thread(site.ledger.waits)
        return any(wait.missing is Missing.STANDBY and not wait.runs_on for wait in waits)

    async def _finish(self, machine: Machine) -> None:
        """Take a machine out once its replicas have left it, or had the time to."""
        now, life = self._site.clock.monotonic(), (machine.name, machine.incarnation)
        if not self._have_left(machine) and now - self._leaving[life] < LEAVE_S:
            return
        if life in self._tried_at and now - self._tried_at[life] < TRY_AGAIN_S:
            return
        self._tried_at[life] = now
        why = machine.cordon_reason or f"left role {machine.role} of job {machine.job}"
        try:
            await self._take_out(machine, why, machine.cordon_scope or Scope.CLUSTER)
        except HoldfastError as error:
            log.warning("machine %s, which left role %s, is not out: %s", machine.name, machine.role, error)
        await self._site.machine(machine.name)

    async def _forbidden(self, alert: Alert, machine: Machine, job: Job) -> str:
        """Return why a machine is not taken out by itself; empty: it may be, as always when a person asks."""
        if alert.kind is AlertKind.MANUAL:
            return ""
        site, now = self._site, self._site.clock.now()
        mode = modes.may_act(job.spec, IncidentClass.MACHINE_FAULT, {machine.name}, site.policy.modes)
        if not mode.act:
            return mode.reason
        policy = site.policy.breaker
        evicted = await asyncio.to_thread(site.ledger.evictions, now - policy.window_s)
        of_job = await asyncio.to_thread(site.ledger.evictions, now - policy.job_window_s, job.name)
        evicted += [at for _, at in self._drained]
        of_job += [at for name, at in self._drained if name == job.name]
        size = len(job.machines) + sum(own_machines(job.spec.roles).values())
        answers = (
            breaker.may_evict(evicted, 1, len(site.fleet.machines), now, policy),
            breaker.may_evict_from_job(of_job, 1, size, now, policy),
        )
        return next((answer.reason for answer in answers if not answer.allowed), "")

    async def _ignore(self, alert: Alert, why: str) -> Outcome:
        await asyncio.to_thread(self._site.ledger.record_alert, alert, None, f"{What.IGNORED}: {why}")
        return Outcome(outcome=What.IGNORED, message=why)


async def claim(site: Site, job: Job, wanted: dict[str, int], *, keep: int = 0, starts: bool = False) -> None:
    """Take standbys for roles until each has as many machines for itself as ``wanted``, as far as there are any.

    Those of the kind that the role had are taken, and ``keep`` standbys are left.
    """
    ledger, pool = site.ledger, site.policy.spare_pool
    flapping = await asyncio.to_thread(flaps.of_the_pool, ledger, site.clock, site.policy)
    places = await asyncio.to_thread(ledger.places, job.name)
    for role, number in wanted.items():
        standbys = [each.name for each in await asyncio.to_thread(ledger.machines, MachineState.STANDBY)]
        before = {each.name for each in site.fleet.of_roles(job.name) if each.role == role}
        kinds = {
            group_of(name, pool) for name in before.union(each.machine for each in places.of(role)) if name
        }
        others = [name for name in standbys if kinds and group_of(name, pool) not in kinds]
        most = len(standbys) - len({*flapping}.intersection(standbys)) - keep
        taken = await asyncio.to_thread(
            ledger.claim_for_role, job.name, role, number, most, [*flapping, *others], starts=starts
        )
        for machine in taken:
            site.fleet.machines[machine.name] = machine
            log.info("machine %s serves role %s of job %s", machine.name, role, job.name)
