"""The gateway's view in memory: the ledger's machines and jobs, and the newest heartbeat of each machine.

Bounded by what the ledger knows: a heartbeat is kept only for a known machine, and only the newest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.errors import StaleError, UnknownError
from holdfast.models.agent import Heartbeat, JobOnMachine, RankPhase, RankState, Vitals, Witness
from holdfast.models.job import Job
from holdfast.models.machine import Machine, MachineState
from holdfast.policies.detect.silence import WITNESSES

WATCHED = (MachineState.ACTIVE, MachineState.STANDBY)
"""States in which a machine's silence is noticed."""
OUT_OF_SERVICE = (MachineState.CORDONED, MachineState.GONE)


@dataclass(frozen=True)
class SeenHeartbeat:
    """The newest heartbeat of one machine, and when it arrived (the gateway's clock)."""

    beat: Heartbeat
    at: float
    whole: bool = True
    """Whether all of it could be read."""


class Fleet:
    """Machines, jobs and heartbeats. One event loop uses it; nothing in it waits."""

    def __init__(self, now: float) -> None:
        self.machines: dict[str, Machine] = {}
        self.jobs: dict[str, Job] = {}
        self.unwritten: dict[tuple[str, str], float] = {}
        """When machines (name, incarnation) were last heard, if not written to the ledger yet."""
        self._seen: dict[str, SeenHeartbeat] = {}
        self._last_seen: dict[str, float] = {}
        self._answered: dict[str, float] = {}
        self._late_at: dict[str, float] = {}
        """When a machine was heard late last: after a silence of more than a window."""
        self._ring: list[str] = []
        self._place: dict[str, int] = {}
        self._grace_from = now

    def load(self, machines: Sequence[Machine], jobs: Sequence[Job]) -> None:
        """Take the ledger's view; forget machines that it does not know any more."""
        self.machines = {machine.name: machine for machine in machines}
        self.jobs = {job.name: job for job in jobs}
        for name in (self._last_seen.keys() | self._answered.keys()) - self.machines.keys():
            self.forget(name)
        self._ring = sorted(m.name for m in machines if m.state in WATCHED and m.address)
        self._place = {name: place for place, name in enumerate(self._ring)}

    def admit(self, name: str, incarnation: str) -> Machine:
        """Return the machine, when ``incarnation`` is its present one.

        Raises:
            UnknownError: no such machine (its agent registers, then tries again).
            StaleError: it was replaced or evicted (its agent ends).
        """
        machine = self.machines.get(name)
        if machine is None:
            raise UnknownError(f"machine {name!r} is not registered: register it first")
        if machine.incarnation != incarnation:
            raise StaleError(f"incarnation {incarnation!r} of machine {name} was replaced by a newer one")
        if machine.state in OUT_OF_SERVICE:
            raise StaleError(
                f"machine {name} is {machine.state} ({machine.cordon_reason or 'no reason given'})"
            )
        return machine

    def observe(self, beat: Heartbeat, now: float, *, whole: bool = True, window_s: float = math.inf) -> None:
        """Keep a heartbeat of an admitted machine; not ``whole``: parts of it could not be read.

        It is late where the machine was not heard for ``window_s``.
        """
        if now - self._last_seen.get(beat.machine, now) > window_s:
            self._late_at[beat.machine] = now
        self._seen[beat.machine] = SeenHeartbeat(beat, now, whole)
        self._last_seen[beat.machine] = now

    def registered(self, machine: Machine, now: float) -> None:
        """Take a machine that has just registered."""
        self.machines[machine.name] = machine
        self._seen.pop(machine.name, None)
        self._last_seen[machine.name] = now

    def of_roles(self, job: str) -> list[Machine]:
        """Return the machines that roles of ``job`` have for themselves, those that leave it too."""
        return [each for each in self.machines.values() if each.role and each.job == job]

    def of_job(self, job: Job) -> list[Machine]:
        """Return the machines that run the ranks of ``job``, as far as they are known."""
        return [self.machines[name] for name in job.machines if name in self.machines]

    def forget(self, name: str) -> None:
        """Drop what was heard from a machine."""
        self._seen.pop(name, None)
        self._last_seen.pop(name, None)
        self._answered.pop(name, None)
        self._late_at.pop(name, None)

    def answered(self, name: str, now: float) -> None:
        """Note that a machine answered a probe: it hears us, whatever keeps us from hearing it."""
        self._answered[name] = now

    def witnesses(self, name: str) -> tuple[Witness, ...]:
        """Return a few machines in service that ``name`` may ask about us, far from it in the order of names.

        Neighbours by name often share a rack with it, and what cuts that off.
        """
        if name not in self._place:
            return ()
        size, here = len(self._ring), self._place[name]
        share = WITNESSES + 1
        places = dict.fromkeys((here + max(1, size * part // share)) % size for part in range(1, share))
        chosen = [self.machines[self._ring[place]] for place in places if place != here]
        return tuple(Witness(name=machine.name, address=machine.address) for machine in chosen)

    def grace(self, now: float) -> None:
        """Count silence from ``now`` on: before, it was the gateway that did not listen."""
        self._grace_from = now

    def set_back(self, now: float) -> None:
        """Note that the clock was set back to ``now``: else a dead machine would seem heard until it catches up."""
        self._last_seen = {name: min(at, now) for name, at in self._last_seen.items()}
        self._answered = {name: min(at, now) for name, at in self._answered.items()}
        self._grace_from = min(self._grace_from, now)

    def silent_s(self, name: str, now: float) -> float:
        """Return the seconds since a machine last sent or answered anything, or since the gateway began to listen."""
        return now - max(self._last_seen.get(name, 0.0), self._answered.get(name, 0.0), self._grace_from)

    def late_s(self, window_s: float, now: float) -> dict[str, float]:
        """Return by machine in service how long ago it was late last, in seconds; one that is late now: 0."""
        watched = (name for name, machine in self.machines.items() if machine.state in WATCHED)
        return {
            name: 0.0 if self.silent_s(name, now) > window_s else now - self._late_at.get(name, -math.inf)
            for name in watched
        }

    def back_s(self, window_s: float, now: float) -> dict[str, float]:
        """Return the same without those that are late now: who was late is heard again, which a cut machine is not."""
        late_s = self.late_s(window_s, now)
        return {name: late_s[name] if self.silent_s(name, now) <= window_s else math.inf for name in late_s}

    def last_seen(self, name: str) -> float:
        """Return when the machine was last heard from; 0.0: never."""
        return self._last_seen.get(name, 0.0)

    def vitals(self, name: str) -> Vitals | None:
        """Return the last report of ``name`` on its GPUs and ports; None when there is none."""
        seen = self._seen.get(name)
        return seen.beat.vitals if seen else None

    def run_of(self, job: Job, name: str) -> JobOnMachine | None:
        """Return the last report of ``name`` on the newest epoch of ``job``; None when it does not run it."""
        seen, machine = self._seen.get(name), self.machines.get(name)
        if seen is None or machine is None or seen.beat.incarnation != machine.incarnation:
            return None
        for run in seen.beat.jobs:
            if run.job == job.name and run.epoch == job.epoch:
                return run
        return None

    def lacks(self, job: Job, name: str) -> bool:
        """Return whether the present life of ``name`` reports, and runs nothing of the newest epoch of ``job``.

        Nor of a later one, which a ledger that was restored from a copy does not know: these ranks train. Of a report
        that was read in part (of an agent of another release) its ranks may be the other part.
        """
        seen, machine = self._seen.get(name), self.machines.get(name)
        if seen is None or machine is None or seen.beat.incarnation != machine.incarnation or not seen.whole:
            return False
        return not any(run.job == job.name and run.epoch >= job.epoch for run in seen.beat.jobs)

    def runs(self, job: Job) -> Iterator[tuple[str, JobOnMachine]]:
        """Yield machine name and run, for each machine of ``job`` that runs its newest epoch."""
        for name in job.machines:
            if run := self.run_of(job, name):
                yield name, run

    def ranks(self, job: Job) -> list[tuple[str, RankState]]:
        """Return machine name and state of each rank of the newest epoch, by rank."""
        found = [(name, rank) for name, run in self.runs(job) for rank in run.ranks]
        return sorted(found, key=lambda pair: pair[1].rank)

    def ended_with_0(self, job: Job) -> set[int]:
        """Return the ranks of the newest epoch that ended with status 0, as far as heartbeats show it."""
        ranks = self.ranks(job)
        return {rank.rank for _, rank in ranks if rank.phase is RankPhase.EXITED and rank.exit_code == 0}
