"""Sizes of jobs: what people ask for, and elastic jobs that grow back when machines stand by."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from holdfast.deployments.gateway.fleet.facts import gather
from holdfast.deployments.gateway.intake.correlate import Correlator
from holdfast.deployments.gateway.intake.outcome import Outcome, What
from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import HoldfastError, NoStandbyError, RefusedError
from holdfast.models.alert import Alert, AlertKind, Incident, IncidentClass, IncidentState
from holdfast.models.history import Action, ActionState
from holdfast.models.job import Job, JobState
from holdfast.models.machine import Machine, MachineState, Scope
from holdfast.operations import flaps, resize
from holdfast.policies.config.planned_move import Fate
from holdfast.policies.counted import counted
from holdfast.policies.escalate import waits
from holdfast.policies.pool import elastic, planned_move
from holdfast.policies.pool.machine_groups import group_of
from holdfast.storage.ledger import Ledger

_LOOK_BACK = 32
"""Incidents of a job, newest first, among which those are that changed its size."""
TRY_AGAIN_S = 300.0
"""Pause before a machine that a job left is taken out once more, where that failed."""


class Sizes:
    """Looks at what is, not at what happened: a gateway that was away catches up."""

    def __init__(
        self,
        site: Site,
        correlator: Correlator,
        release_unplaced: Callable[[str], Awaitable[None]],
        take_out: Callable[[Machine, str, Scope], Awaitable[None]],
    ) -> None:
        self._site = site
        self._correlator = correlator
        self._release = release_unplaced
        self._take_out = take_out
        self._tried_at: dict[tuple[str, str], float] = {}
        """Machines that jobs left, by name and incarnation."""

    async def ask(self, job: Job, machines: int, by: str, note: str = "", *, grown: bool = False) -> Outcome:
        """Have a job's number of machines changed by the playbook ``scale-job``; 0: to zero.

        ``grown``: no one asked for it; else the job keeps this size until it is asked for another.

        Raises:
            RefusedError: the job cannot have so many, or is held or has ended.
            NoStandbyError: it is scaled to zero, and too few machines stand by.
        """
        resize.must_be_scalable(job)
        if machines:
            resize.spec_for(job, machines)
        has_them = machines == len(job.machines) and machines in (0, job.spec.machines)
        if has_them and not await asyncio.to_thread(_is_being_resized, self._site.ledger, job.name):
            if machines and not grown:  # it may be smaller than it wants to be, and would grow back
                await asyncio.to_thread(self._site.ledger.want_size, job.name, machines)
            if not grown:
                await asyncio.to_thread(_forget_wishes, self._site.ledger, job.name)
            return Outcome(
                outcome=What.IGNORED,
                message=f"job {job.name} has {counted(machines, 'machine', 'machines')} already",
            )
        if not job.machines and (standing_by := len(await self._usable(job))) < machines:
            wants = f"job {job.name} wants {counted(machines, 'machine', 'machines')}"
            raise NoStandbyError(f"{wants}, {counted(standing_by, 'stands', 'stand')} by")
        now = self._site.clock.now()
        change = f"{counted(machines, 'machine', 'machines')} instead of {len(job.machines)}"
        return await self._correlator.accept(
            Alert(
                kind=AlertKind.MANUAL,
                job=job.name,
                at=now,
                fingerprint=f"scale:{job.name}:{machines}:{now:.6f}",
                evidence={
                    "class": IncidentClass.SCALE_JOB.value,
                    "machines": machines,
                    "by": by,
                    "grown": grown,
                    "text": f"{change}{f': {note}' if note else ''}",
                },
            )
        )

    async def ask_again(self, incident: Incident) -> bool:
        """Ask once more for the size of an incident that lacked machines, when enough stand by.

        Returns:
            Whether it is over: asked for, or superseded by what was asked for since.
        """
        job, machines = await self._site.job(incident.job), incident.machines_asked
        newest = await asyncio.to_thread(_last_asked, self._site.ledger, job)
        if newest != incident.id or not isinstance(machines, int) or machines == len(job.machines):
            return True
        if len(await self._usable(job)) + len(job.machines) < machines:
            return False
        by = str(incident.alerts[0].evidence.get("by", ""))
        try:
            await self.ask(job, machines, by, f"asked for in {incident.id}, machines stand by now")
        except NoStandbyError:
            return False
        except RefusedError as refused:
            log.info("%s: not asked for again: %s", incident.id, refused)
        return True

    async def tick(self) -> None:
        """Run one round."""
        leaving: dict[str, list[Machine]] = {}
        for machine in self._site.fleet.machines.values():
            if machine.state is MachineState.DRAINING and machine.job is not None and not machine.role:
                leaving.setdefault(machine.job, []).append(machine)
        for job in list(self._site.fleet.jobs.values()):
            left = [each for each in leaving.get(job.name, ()) if each.name not in job.machines]
            try:
                if job.state in (JobState.RUNNING, JobState.SCALED_TO_ZERO):
                    await self._look(job, left)
                elif left and job.state in (JobState.STOPPED, JobState.DONE):
                    # Not of one that has failed: its next attempt may need their memory.
                    await self._finish_all(job, left)
            except HoldfastError as error:
                log.warning("size of job %s: %s", job.name, error)

    async def _look(self, job: Job, leaving: Sequence[Machine]) -> None:
        site, limits = self._site, self._site.policy.elastic
        left = resize.left_over(job, (each for each in site.fleet.machines.values() if each.serves(job.name)))
        grows = limits.grow and job.state is JobState.RUNNING
        wants_more = grows and job.spec.elastic is not None and job.spec.machines < job.spec.elastic.want
        await self._finish_all(job, leaving)
        if not (left or wants_more) or not await self._is_settled(job):
            return
        if left:
            await self._release(job.name)
            return
        standing_by = max(0, len(await self._usable(job)) - limits.keep_standbys)
        machines = elastic.grown(job.spec, standing_by)
        if machines > job.spec.machines and not await self._failed_lately(job):
            log.info("job %s grows to %d machines: %d stand by", job.name, machines, standing_by)
            await self.ask(job, machines, "holdfast", "machines stand by", grown=True)

    async def _finish_all(self, job: Job, leaving: Sequence[Machine]) -> None:
        if leaving and await self._is_settled(job):
            for machine in leaving:
                await self._finish(machine)

    async def _finish(self, machine: Machine) -> None:
        """Take out a machine that the job has left: the run that was to see to it gave way to something else."""
        now, life = self._site.clock.monotonic(), (machine.name, machine.incarnation)
        self._tried_at = {key: at for key, at in self._tried_at.items() if now - at < TRY_AGAIN_S}
        if life in self._tried_at:
            return
        self._tried_at[life] = now
        if machine.job is not None and await self._stands_by_again(machine):
            log.info("machine %s, which job %s has left, stands by again", machine.name, machine.job)
            await asyncio.to_thread(_end_drain, self._site.ledger, machine)
            await self._release(machine.job)
            return
        log.warning("machine %s, which job %s has left, is taken out", machine.name, machine.job)
        why = machine.cordon_reason or f"left by job {machine.job}"
        await self._take_out(machine, why, machine.cordon_scope or Scope.CLUSTER)

    async def _stands_by_again(self, machine: Machine) -> bool:
        """Return whether a planned move left the machine, after which the policy has it stand by again."""
        move = await asyncio.to_thread(_last_move, self._site.ledger, machine)
        asked = planned_move.asked(move) if move else None
        if asked is None or machine.cordon_reason != asked.left_because:
            return False
        return self._site.policy.planned_move.afterwards[asked.source] is Fate.STANDBY

    async def _is_settled(self, job: Job) -> bool:
        """Return whether it runs for long enough at its present size, and no incident of it is worked on."""
        facts = await asyncio.to_thread(gather, self._site.ledger, job.name, None)
        since = self._site.clock.now() - self._site.policy.elastic.settled_s
        same = (facts.job.state, facts.job.spec) == (job.state, job.spec)
        return same and facts.acting is None and 0 < facts.epoch_opened_at <= since

    async def _failed_lately(self, job: Job) -> bool:
        """Return whether the job did not come up with another size lately: the pauses between such attempts grow."""
        failed = await asyncio.to_thread(_failures, self._site.ledger, job)
        if not failed:
            return False
        return 0 <= self._site.clock.now() - failed[0] < waits.pause_s(len(failed), self._site.policy.again)

    async def _usable(self, job: Job) -> list[str]:
        """Return the standbys that the job may take: of the kind of those that it has."""
        site, pool = self._site, self._site.policy.spare_pool
        kinds = {group_of(name, pool) for name in job.machines[:1]}
        standbys = await asyncio.to_thread(site.ledger.machines, MachineState.STANDBY)
        flapping = await asyncio.to_thread(flaps.of_the_pool, site.ledger, site.clock, site.policy)
        names = [machine.name for machine in standbys if machine.name not in flapping]
        return [name for name in names if not kinds or group_of(name, pool) in kinds]


def _is_being_resized(ledger: Ledger, job: str) -> bool:
    """Return whether the size of the job is about to change (blocking)."""
    found = ledger.incidents(job, IncidentState.OPEN, evidence=False)
    return any(each.incident_class is IncidentClass.SCALE_JOB for each in found)


def _last_asked(ledger: Ledger, job: Job) -> str:
    """Return the newest incident in which a person or a schedule asked for a size; empty: none did (blocking)."""
    for incident in ledger.incidents(job.name, limit=_LOOK_BACK):
        asked = any(not alert.evidence.get("grown") for alert in incident.alerts)
        if asked and incident.incident_class is IncidentClass.SCALE_JOB:
            return incident.id
    return ""


def _last_move(ledger: Ledger, machine: Machine) -> Incident | None:
    """Return the newest incident in which the machine's job was to leave it (blocking)."""
    for incident in ledger.incidents(machine.job, limit=_LOOK_BACK):
        if incident.incident_class is IncidentClass.PLANNED_MOVE and incident.machine == machine.name:
            return incident
    return None


def _end_drain(ledger: Ledger, machine: Machine) -> None:
    """Have a machine that leaves its job serve it without a slot, as one that is left over (blocking)."""
    ledger.set_machine(machine.name, state=MachineState.ACTIVE, cordon_scope=None, cordon_reason=None)


def _forget_wishes(ledger: Ledger, job: str) -> None:
    """End the waits of sizes that lack machines: another one is wanted now (blocking)."""
    for wait in ledger.waits():
        incident = ledger.incident(wait.incident_id) if wait.job == job else None
        if incident is not None and incident.incident_class is IncidentClass.SCALE_JOB:
            ledger.end_wait(incident.id)


def _failures(ledger: Ledger, job: Job) -> list[float]:
    """Return when the changes of size ended that the job did not come up with, the newest ones in a row (blocking)."""
    ended: list[float] = []
    for incident in ledger.incidents(job.name, limit=_LOOK_BACK, evidence=False):
        if incident.incident_class is not IncidentClass.SCALE_JOB or incident.opened_at < job.submitted_at:
            continue
        if incident.closed_at is None or not _went_back(ledger.actions(incident.id, "resize")):
            break
        ended.append(incident.closed_at)
    return ended


def _went_back(actions: Sequence[Action]) -> bool:
    """Return whether a change of size was taken back in the end."""
    done = [each.result for each in actions if each.kind == "resize" and each.state is ActionState.DONE]
    return len(done) > 1 and done[-1].get("to") == done[0].get("from")
