"""Steps that jobs complete: written to the ledger once per heartbeat, and what they prove about incidents.

A heartbeat is answered before any of it is written: while the ledger is away machines must not take themselves for cut
off. Their reports are written when it is back.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import UnavailableError, UnknownError
from holdfast.models.agent import JobOnMachine, RankPhase, StepMark
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.classes import BESIDE_TRAINING, ON_PURPOSE
from holdfast.models.history import Action
from holdfast.models.job import ENDED, Job, JobState
from holdfast.policies.accounting import new_step
from holdfast.policies.escalate import overtake
from holdfast.storage.ledger import Ledger

LOOK_BACK = 20
"""Incidents of a job, newest first, that a new step may still prove recovered."""
MOST_WAITING = 1000
"""Heartbeats of a job that wait for the ledger; of more, the oldest are dropped: later ones show how far it came."""
AGAIN_S = 0.5
"""Pause before a retry after the ledger did not answer."""


@dataclass(frozen=True)
class _Received:
    """A heartbeat's report about a job that is to be written, and when it arrived."""

    machine: str
    run: JobOnMachine
    sent_at: float
    now: float


class Progress:
    """Follows the steps of all jobs."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._marked: dict[str, tuple[int, int]] = {}
        self._watched: dict[str, list[Incident]] = {}
        self._looked: dict[str, tuple[float, int, JobState]] = {}
        """Each job as it was at the last look."""
        self._done: dict[str, tuple[int, set[int]]] = {}
        self._received_at: dict[str, float] = {}
        self._saved: dict[str, int] = {}
        self._waiting: defaultdict[str, deque[_Received]] = defaultdict(lambda: deque(maxlen=MOST_WAITING))
        self._writing: set[str] = set()

    def record(self, machine: str, run: JobOnMachine, sent_at: float = 0.0) -> None:
        """Take the report on one job of a heartbeat sent at ``sent_at`` (the machine's clock); it is written later."""
        if run.job not in self._site.fleet.jobs or not self._says_something(run):
            return
        self._waiting[run.job].append(_Received(machine, run, sent_at, self._site.clock.now()))
        if run.job not in self._writing:
            self._writing.add(run.job)
            self._site.spawn(self._write(run.job), f"steps of {run.job}")

    def _says_something(self, run: JobOnMachine) -> bool:
        saved = run.saved_step and run.epoch > self._saved.get(run.job, 0)
        return bool(run.marks or saved or _ended(run))

    async def _write(self, job_name: str) -> None:
        """Write what waits, oldest first; while the ledger does not answer, try again."""
        waiting = self._waiting[job_name]
        try:
            while waiting:
                received = waiting[0]
                try:
                    await self._note_run(received)
                except UnavailableError as error:
                    log.debug("steps of %s wait: %s", job_name, error)
                    await self._site.clock.sleep(AGAIN_S)
                    continue
                except Exception:
                    log.exception("%s: the reports of its machines cannot be written", job_name)
                if waiting and waiting[0] is received:
                    waiting.popleft()
        finally:
            self._writing.discard(job_name)
            if not waiting:
                self._waiting.pop(job_name, None)

    async def _note_run(self, received: _Received) -> None:
        run = received.run
        await self.note(run.job, run.epoch, received.machine, run.marks, received.sent_at, received.now)
        await self._note_saved(run)
        await self.note_done(run.job, run.epoch, _ended(run))

    async def note(  # noqa: PLR0917
        self,
        job_name: str,
        epoch: int,
        machine: str,
        marks: Sequence[StepMark],
        sent_at: float = 0.0,
        received_at: float | None = None,
    ) -> None:
        """Take the steps that the machine of rank 0 completed; others' are dropped (they report the same).

        The clock of the machine is not trusted: what counts is when the report arrived here. Of the machine's
        own times (``sent_at``: when it sent the report; 0: not reported) only differences are used. ``received_at``:
        when the report arrived, if it is not just now.
        """
        job = self._site.fleet.jobs.get(job_name)
        if job is None or not marks or not job.machines or machine != job.machines[0] or epoch < 1:
            return
        async with self._locks[job_name]:
            marked_epoch, marked_step = self._marked.get(job_name, (0, 0))
            if epoch < marked_epoch:
                return
            new = [mark for mark in marks if epoch > marked_epoch or mark.step > marked_step]
            if new:
                new.sort(key=lambda mark: mark.step)
                now = self._site.clock.now() if received_at is None else received_at
                await self._mark(
                    job_name, epoch, on_our_clock(new, sent_at, now, self._received_at.get(job_name))
                )
                self._received_at[job_name] = now

    async def _note_saved(self, run: JobOnMachine) -> None:
        """Record once per epoch that the job has saved state to lose: before the job's first fault, not after it."""
        known = self._saved.get(run.job, 0)
        if run.saved_step and run.epoch > known and run.job in self._site.fleet.jobs:
            await asyncio.to_thread(self._site.ledger.note_saved, run.job, run.epoch)
            self._saved[run.job] = run.epoch

    def ended_before_others(self, job: Job) -> tuple[int, ...]:
        """Return the ranks of the newest epoch that ended with status 0, unless all did.

        An agent reports that at once; its next heartbeat, which shows it too, may come seconds later.
        """
        epoch, done = self._done.get(job.name, (job.epoch, set()))
        seen = self._site.fleet.ended_with_0(job)
        ended = seen.union(done) if epoch == job.epoch else seen
        return tuple(sorted(ended)) if len(ended) < job.spec.world_size else ()

    async def note_done(self, job_name: str, epoch: int, ranks: Sequence[int]) -> None:
        """Take ranks that ended with status 0; once all have, the job is done."""
        job = self._site.fleet.jobs.get(job_name)
        if job is None or not ranks or job.state not in (JobState.RUNNING, JobState.RECOVERING):
            return
        if epoch != job.epoch:
            job = await self._site.job(job_name)
        if epoch != job.epoch:
            return
        known_epoch, done = self._done.get(job_name, (epoch, set()))
        done = done if known_epoch == epoch else set()
        done.update(rank for rank in ranks if 0 <= rank < job.spec.world_size)
        self._done[job_name] = (epoch, done)
        if len(done) == job.spec.world_size and not await asyncio.to_thread(
            _is_stopped, self._site.ledger, job
        ):
            await self._finish(job)

    async def watch(self) -> None:
        """Look for incidents whose recovery no step has proved yet, and those proved while no gateway watched."""
        for job in list(self._site.fleet.jobs.values()):
            life = (job.submitted_at, job.epoch, job.state)
            if job.state in ENDED and self._looked.get(job.name) == life:
                continue  # a ledger of years has thousands; what a late mark proves is judged when it comes
            # Read under the lock: what a mark proves meanwhile must not be judged again from older rows.
            async with self._locks[job.name]:
                incidents = await asyncio.to_thread(
                    self._site.ledger.incidents, job.name, limit=LOOK_BACK, evidence=False
                )
                self._watched[job.name] = [known for known in incidents if _unproved(known, job)]
                if self._watched[job.name]:
                    await self._prove(job.name, None, [])
            self._looked[job.name] = life

    async def _mark(self, job_name: str, epoch: int, marks: Sequence[StepMark]) -> None:
        first, last = marks[0], marks[-1]
        ledger = self._site.ledger
        try:
            if self._marked.get(job_name, (0, 0))[0] != epoch:
                begun = first.at - first.s
                await asyncio.to_thread(
                    ledger.mark, job_name, epoch, first.step, first.at, 1, begun, first.stall_s
                )
                rest = marks[1:]
            else:
                rest = marks
            if rest:
                stall_s = sum(mark.stall_s for mark in rest)
                await asyncio.to_thread(
                    ledger.mark, job_name, epoch, last.step, last.at, len(rest), None, stall_s
                )
        except UnknownError:
            # The playbook opens an epoch in the ledger before it starts ranks: this is no epoch of ours.
            return
        self._marked[job_name] = (epoch, last.step)
        self._site.metrics.job_step.labels(job_name).set(last.step)
        if self._watched.get(job_name):
            await self._prove(job_name, epoch, marks)

    async def _prove(self, job_name: str, epoch: int | None, marks: Sequence[StepMark]) -> None:
        """Find the first new step after each watched incident: beyond every step that was done before it."""
        submitted_at = self._site.fleet.jobs[job_name].submitted_at
        rows = await asyncio.to_thread(self._site.ledger.epochs, job_name, machines=False)
        epochs = [row for row in rows if row.opened_at >= submitted_at]
        unproved = []
        for incident in self._watched.get(job_name, []):
            at = new_step.first_at(incident, epochs, epoch, marks)
            if at is None:
                unproved.append(incident)
                continue
            await asyncio.to_thread(self._site.ledger.set_incident, incident.id, recovered_at=at)
            log.info("%s: first new step %.2f s after detection", incident.id, at - incident.detected_at)
        self._watched[job_name] = unproved

    async def _finish(self, job: Job) -> None:
        ledger, now = self._site.ledger, self._site.clock.now()
        log.info("job %s is done: all %d ranks ended with status 0", job.name, job.spec.world_size)
        await asyncio.to_thread(ledger.close_epoch, job.name, job.epoch, "done", now)
        # Before the job's state: once that is written no later look comes here again.
        await asyncio.to_thread(_dismiss, ledger, job.name)
        done = await asyncio.to_thread(ledger.set_job, job.name, state=JobState.DONE, done_at=now)
        self._site.fleet.jobs[job.name] = done
        self._done.pop(job.name, None)


def _is_stopped(ledger: Ledger, job: Job) -> bool:
    """Return whether a playbook stops the job's epoch, and starts another (blocking).

    Ranks that handle SIGTERM end with status 0 then; agents of earlier releases report that in heartbeats.
    """
    acting = ledger.acting(job.name, evidence=False)
    actions = ledger.actions(acting.id, evidence=False) if acting is not None else ()
    return any(each.kind == "pause" and each.intent.get("epoch") == job.epoch for each in actions)


def _dismiss(ledger: Ledger, job: str) -> None:
    """Dismiss what was worked on beside the training that is over now: there is nothing left to do (blocking).

    So with a change of code or size that has not stopped the ranks yet: it would start the job again that is done.
    """
    acting = ledger.acting(job)
    actions = ledger.actions(acting.id, evidence=False) if acting is not None else ()
    if acting is not None and (overtake.leaves_alone(acting, actions) or _not_begun(acting, actions)):
        found = "; ".join(acting.reasons)
        summary = f"{found}. Nothing was done about it: the job is done, all its ranks ended with status 0"
        ledger.set_incident(acting.id, state=IncidentState.DISMISSED, summary=summary)


def _not_begun(change: Incident, actions: Sequence[Action]) -> bool:
    """Return whether an incident is a change of a healthy job whose playbook has not ordered its ranks to stop."""
    changes = change.incident_class in ON_PURPOSE - BESIDE_TRAINING
    return changes and not any(action.kind == "pause" for action in actions)


def _ended(run: JobOnMachine) -> list[int]:
    return [rank.rank for rank in run.ranks if rank.phase is RankPhase.EXITED and rank.exit_code == 0]


def on_our_clock(
    marks: Sequence[StepMark], sent_at: float, now: float, previous_at: float | None
) -> list[StepMark]:
    """Return the marks with the times at which they were made on the gateway's clock.

    A mark is as old as the machine reported when sending it, but its age is neither negative nor greater than
    that of the job's previous report: a wrong clock, or one that jumps, moves it within that span only.
    """
    oldest = now - previous_at if previous_at is not None else float("inf")
    ages = [min(max(0.0, sent_at - mark.at), oldest) if sent_at else 0.0 for mark in marks]
    return [mark.model_copy(update={"at": now - age}) for mark, age in zip(marks, ages, strict=True)]


def _unproved(incident: Incident, job: Job) -> bool:
    alive = incident.state in (IncidentState.OPEN, IncidentState.RECOVERED)
    return alive and incident.recovered_at is None and incident.opened_at >= job.submitted_at
