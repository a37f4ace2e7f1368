"""Roles of jobs: where replicas belong, who can be reached, and what each machine is to run.

Places are in the ledger before an agent hears of them; heartbeats are answered from memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from holdfast.deployments.gateway.fleet import role_incidents, role_view
from holdfast.deployments.gateway.fleet.role_plans import plans
from holdfast.deployments.gateway.fleet.role_times import RoleTimes
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import RefusedError, UnavailableError
from holdfast.models.agent import Heartbeat
from holdfast.models.job import ENDED, Job, JobState
from holdfast.models.location import Location
from holdfast.models.machine import Machine
from holdfast.models.roles import TRAINER, PlacesOfJob, ReplicaPhase, ReplicaPlace, ReplicaState, RolePlan
from holdfast.policies.pool.topology import locate
from holdfast.policies.roles.decide import Decided, RoleFacts, decide, key_of
from holdfast.policies.roles.start_order import waits_for

TICK_S = 0.2
READY_S = 20.0
"""A trainer waits so long for the roles that it needs: the person who submits it waits too."""
_NOTHING = RolePlan()
_LIVE = (ReplicaPhase.RUNNING, ReplicaPhase.PAUSING)
"""A replica has a process, or will have one where it is."""
_GIVEN = 8


class Roles:
    """Looks at what is, not at what happened: a gateway that was away catches up."""

    def __init__(self, site: Site, require_sure: Callable[[], None] = lambda: None) -> None:
        """``require_sure`` raises where another gateway may lead by now."""
        self._site = site
        self._require_sure = require_sure
        self._given: dict[str, deque[str]] = {}
        """Versions of the newest plans that each machine had of this gateway."""
        self._reports: dict[str, tuple[str, tuple[ReplicaState, ...]]] = {}
        self._sent: dict[str, float] = {}
        """When the newest heartbeat of each machine was sent, by that machine's clock."""
        self._goes_by: dict[str, tuple[str, str]] = {}
        """Incarnation of each machine, and the version of the plan that it goes by."""
        self._places: dict[str, PlacesOfJob] = {}
        self._decided: dict[str, Decided] = {}
        self._seen: dict[str, tuple[RoleFacts, PlacesOfJob]] = {}
        """Facts and places of the last decision."""
        self._plans: dict[str, RolePlan] = {}
        self._planned: dict[str, tuple[Job, Decided]] = {}
        self._ends: dict[str, int] = {}
        """How often a job with roles ended while this gateway led."""
        self._holding: set[str] = set()
        """Machines whose replicas run on as they are, until their job was looked at."""
        self._looked = False
        self._starting: dict[str, int] = {}
        """Jobs whose trainer is being started by a person, and its epoch up to then."""
        self._ruling = asyncio.Lock()
        self._cores: dict[str, int] = {}
        """Of each machine that was heard; 0: it reports none."""
        self.times = RoleTimes(site, self.running)

    async def resume(self) -> None:
        """Read the ledger again: another gateway may have led meanwhile."""
        self._places.clear()
        self._decided.clear()
        self._seen.clear()
        self._goes_by.clear()
        self._given.clear()
        self._plans, self._planned = {}, {}
        self._looked = False
        self.times.resume()

    def observe(self, beat: Heartbeat) -> None:
        """Take what an admitted machine reports of its replicas."""
        self._cores[beat.machine] = beat.cores
        self._goes_by[beat.machine] = (beat.incarnation, beat.plan)
        if beat.replicas or beat.machine in self._reports:
            self._reports[beat.machine] = (beat.incarnation, beat.replicas)
            self._sent[beat.machine] = beat.at

    def plan_for(self, beat: Heartbeat) -> RolePlan | None:
        """Return the plan of a machine, if it goes by another one; None: it has the newest, or none is known yet."""
        if not self._looked or beat.machine in self._holding:
            return None
        plan, given = self._plans.get(beat.machine, _NOTHING), self._given.get(beat.machine)
        if plan.version != beat.plan and not self._may_follow(beat.plan, given or ()):
            return None
        if given is None:
            given = self._given[beat.machine] = deque(maxlen=_GIVEN)
        if plan.version not in given:
            given.append(plan.version)
        return plan if plan.version != beat.plan else None

    def _may_follow(self, present: str, given: Collection[str]) -> bool:
        """Return whether the plan that a machine goes by may be replaced.

        While the ledger is away, a gateway goes on with plans of its own. It may be the only one that it is away for:
        what another one has placed since must not start again elsewhere.
        """
        try:
            self._require_sure()
        except UnavailableError:
            return present in given
        return True

    async def tick(self) -> None:
        """Run one round."""
        async with self._ruling:
            fleet = self._site.fleet
            jobs = [job for job in fleet.jobs.values() if job.spec.roles and self._runs(job)]
            for name in self._decided.keys() - {job.name for job in jobs}:
                del self._decided[name]
                self._seen.pop(name, None)
                self._ends[name] = self._ends.get(name, 0) + 1
            for job in jobs:
                if self._settled(job):
                    await self._rule(job)
            decided = {job.name: (job, self._decided[job.name]) for job in jobs if job.name in self._decided}
            self._holding = {
                name for job in jobs if job.name not in decided for name in self._machines_of(job)
            }
            if decided != self._planned:
                self._plans, self._planned = plans(decided.values(), self._ends), decided
            self._looked = True
            for name in self._reports.keys() - fleet.machines.keys():
                del self._reports[name], self._sent[name]
            for name in self._goes_by.keys() - fleet.machines.keys():
                del self._goes_by[name]
                self._given.pop(name, None)

    async def submitted(self, name: str) -> None:
        """Drop the places that a former job of this name left, and close their incidents; generations count on."""
        async with self._ruling:
            known = await asyncio.to_thread(self._site.ledger.places, name)
            if known.places:
                # Incidents first: killed in between, the next submission finds them by the places.
                await asyncio.to_thread(role_incidents.dropped, self._site.ledger, name, known)
                for role in {each.role for each in known.places}:
                    known = known.with_role(role, ())
                await asyncio.to_thread(self._site.ledger.set_places, name, known)
            self._places[name] = known
            await self.times.submitted(name)

    async def scale(self, job: Job, role: str, replicas: int) -> Job:
        """Give a role another number of replicas.

        Raises:
            RefusedError: the job has ended, or has no such role, or no room for so many.
        """
        if job.state in ENDED:
            raise RefusedError(f"job {job.name} is {job.state}: only a job that has not ended is scaled")
        try:
            await asyncio.to_thread(self._site.ledger.scale_role, job.name, role, replicas)
        except ValueError as error:
            raise RefusedError(str(error)) from None
        return await self._site.job(job.name)

    @contextlib.asynccontextmanager
    async def before_trainer(self, job: Job) -> AsyncIterator[None]:
        """Start the roles that a job's ranks need, and wait until they are ready; inside, its ranks are started.

        Raises:
            UnavailableError: they were not in time.
        """
        if TRAINER not in job.spec.roles:
            yield
            return
        self._starting[job.name] = job.epoch
        try:
            await self._until_ready(job.name)
            yield
            await self._site.job(job.name)
        finally:
            self._starting.pop(job.name, None)

    async def _until_ready(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + READY_S
        while left := await self._trainer_waits(name):
            if loop.time() > end:
                raise UnavailableError(
                    f"job {name}: its trainer needs {', '.join(left)}: not each replica announced an address within "
                    f"{READY_S:g} s; their logs show why. Nothing of the trainer was started. If a role takes longer, "
                    "leave it out of roles.trainer.needs, and call roles.wait_for in the script"
                )
            await asyncio.sleep(TICK_S)

    async def _trainer_waits(self, name: str) -> list[str]:
        await self.tick()
        decided = self._decided.get(name)
        roles = self._site.fleet.jobs[name].spec.roles
        return waits_for(roles, TRAINER, decided.ready if decided is not None else ())

    def running(self) -> Iterator[tuple[Job, Counter[str]]]:
        """Yield the jobs whose replicas are to run, with how many run by role."""
        for name, decided in self._decided.items():
            if (job := self._site.fleet.jobs.get(name)) is None:
                continue
            reports = (
                (each.role, self._report(each.machine, job, *key_of(each))) for each in decided.places.places
            )
            yield (
                job,
                Counter(
                    role
                    for role, report in reports
                    if report is not None and report.phase is ReplicaPhase.RUNNING
                ),
            )

    def view(self, job: Job) -> list[dict[str, Any]]:
        """Return the roles of a job as people see them."""
        times = self.times.of(job.name)
        return role_view.rows(
            job,
            self._decided.get(job.name),
            report=lambda place: self._report(place.machine, job, *key_of(place)),
            shares={name: each.share for name, each in times.items()},
            own=_by_role(self._site.fleet.of_roles(job.name)),
            cores=self._cores,
        )

    def _locations(self, job: Job, machines: Iterable[str]) -> Mapping[str, Location]:
        """Return where these machines are, if any role asks for it."""
        if not any(role.spread for role in job.spec.roles.values()):
            return {}
        known = self._site.fleet.machines
        here = (name for name in machines if name in known)
        return {name: locate(name, known[name].location, self._site.policy) for name in here}

    def _runs(self, job: Job) -> bool:
        if job.name in self._starting:
            return True
        return job.state not in ENDED and job.state is not JobState.SCALED_TO_ZERO and job.epoch > 0

    def _settled(self, job: Job) -> bool:
        """Return whether its machines had time to report, since this gateway began to listen."""
        if job.name in self._decided or job.name in self._starting:
            return True
        site = self._site
        since = site.clock.now() - site.listening_since
        return since > site.window_s or all(site.fleet.last_seen(name) for name in self._machines_of(job))

    def _machines_of(self, job: Job) -> list[str]:
        """Return the machines of its ranks, and those that its roles have for themselves."""
        return [*job.machines, *(each.name for each in self._site.fleet.of_roles(job.name))]

    async def _rule(self, job: Job) -> None:
        ledger = self._site.ledger
        if job.name not in self._places:
            self._places[job.name] = await asyncio.to_thread(ledger.places, job.name)
        before = self._places[job.name]
        facts = self._facts(job, before)
        same = replace(facts, now=0.0)
        waits = any(each.asked for each in before.places)  # for a time
        if job.name in self._decided and self._seen.get(job.name) == (same, before) and not waits:
            return
        decided = decide(facts, before)
        if decided.places != before:
            # Incidents first, and found again: killed in between, the next round sees the same change.
            named = await asyncio.to_thread(role_incidents.record, ledger, job, before, decided.places)
            await asyncio.to_thread(ledger.set_places, job.name, named)
            self._places[job.name] = named
            _log_changes(job, before, named)
        self._decided[job.name] = decided
        # Once more, if something was changed: members are then those of the new places.
        self._seen[job.name] = (same, before)

    def _facts(self, job: Job, before: PlacesOfJob) -> RoleFacts:
        site = self._site
        machines = [name for name in job.machines if name in site.fleet.machines]
        serving = [name for name in machines if site.fleet.machines[name].serves(job.name)]
        own = _by_role(each for each in site.fleet.of_roles(job.name) if each.serves(job.name))
        facts = RoleFacts(
            roles=job.spec.roles,
            machines=serving,
            own=own,
            # What the trainer needs starts before it, for its next epoch: it does not start again with that.
            epoch=max(job.epoch, self._starting.get(job.name, -1) + 1),
            reports={name: self._reported(name, job.name) for name in (*serving, *chain(*own.values()))},
            trained=any(rank.steps_done for _, run in site.fleet.runs(job) for rank in run.ranks),
            now=site.clock.now(),
            locations=self._locations(
                job, {*machines, *chain(*own.values()), *(each.machine for each in before.places)}
            ),
        )
        stay = {name: frozenset(facts.carriers(name)) for name in job.spec.roles}
        stands = {key_of(each): each.machine in stay.get(each.role, ()) for each in before.places}
        return replace(
            facts,
            lingering=frozenset(
                key_of(each)
                for each in before.places
                if each.machine and not stands[key_of(each)] and self._may_run(job, each)
            ),
            lasting=frozenset(
                key_of(each)
                for each in before.places
                if (each.tried or each.incident) and stands[key_of(each)] and self._lasts(job, each)
            ),
        )

    def _lasts(self, job: Job, place: ReplicaPlace) -> bool:
        """Return whether a replica has run for as long as a good run lasts: not every one announces an address."""
        role, report = job.spec.roles.get(place.role), self._report(place.machine, job, *key_of(place))
        if role is None or report is None or report.phase is not ReplicaPhase.RUNNING or not report.pid:
            return False
        return self._sent.get(place.machine, 0.0) - report.since >= role.restart.good_after_s

    def have_left(self, machine: Machine) -> bool:
        """Return whether nothing of any role runs any more, or is to run, on a machine that leaves its job."""
        site, name = self._site, machine.name
        if site.fleet.silent_s(name, site.clock.now()) > site.lease_of(machine):
            return True
        plan = self._plans.get(name, _NOTHING)
        if self._goes_by.get(name) != (machine.incarnation, plan.version):
            return False
        ordered = any(part.replicas for part in plan.jobs)
        return not ordered and not any(each.phase in _LIVE for each in self._states(name))

    def _may_run(self, job: Job, place: ReplicaPlace) -> bool:
        """Return whether a replica may still run on a machine that serves its role no longer.

        It has ended when the machine goes by a plan without it and reports it no more; when the machine was not heard
        for so long that it has ended it by itself, or is dead; and when there is no such machine any more.
        """
        site, name = self._site, place.machine
        machine = site.fleet.machines.get(name)
        if machine is None or site.fleet.silent_s(name, site.clock.now()) > site.lease_of(machine):
            return False
        plan = self._plans.get(name, _NOTHING)
        if self._goes_by.get(name) != (machine.incarnation, plan.version) or _orders(plan, job.name, place):
            return True
        report = self._report(name, job, *key_of(place))
        return report is not None and report.phase in _LIVE

    def _reported(self, machine: str, job: str) -> Sequence[ReplicaState]:
        """Return what a machine reported last of a job's replicas."""
        return [each for each in self._states(machine) if each.job == job]

    def _states(self, machine: str) -> Sequence[ReplicaState]:
        """Return the newest report of a machine's present incarnation."""
        incarnation, states = self._reports.get(machine, ("", ()))
        known = self._site.fleet.machines.get(machine)
        return () if known is None or known.incarnation != incarnation else states

    def _report(self, machine: str, job: Job, role: str, index: int, generation: int) -> ReplicaState | None:
        wanted = (role, index, generation)
        reported = self._reported(machine, job.name)
        return next((each for each in reported if (each.role, each.index, each.generation) == wanted), None)


def _by_role(machines: Iterable[Machine]) -> dict[str, list[str]]:
    """Return the names of machines that roles have for themselves, by role."""
    found: dict[str, list[str]] = {}
    for each in machines:
        found.setdefault(each.role, []).append(each.name)
    return found


def _orders(plan: RolePlan, job: str, place: ReplicaPlace) -> bool:
    """Return whether the machine is to run that replica."""
    return any(
        (each.role, each.index, each.generation) == key_of(place)
        for part in plan.jobs
        if part.job == job
        for each in part.replicas
    )


def _log_changes(job: Job, before: PlacesOfJob, after: PlacesOfJob) -> None:
    known = set(before.places)
    for each in after.places:
        if each not in known:
            log.info(
                "job %s: %s %d belongs on %s (generation %d)%s",
                job.name,
                each.role,
                each.index,
                each.machine,
                each.generation,
                f": a person is asked: {each.asked}" if each.asked else "",
            )
