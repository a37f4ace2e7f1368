"""Roles of a simulated job: replicas fail, start again by the policies that run in production, and are moved."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from random import Random
from typing import Any

import simpy

from holdfast.models.roles import TRAINER, PlacesOfJob, ReplicaPlace, ReplicaState
from holdfast.policies.roles import restart
from holdfast.policies.roles.decide import RETRY_S, ReplicaKey, RoleFacts, decide, key_of
from holdfast.simulate.simulated_replica import PHASES, ReplicaLife, RoleLife, SimulatedReplica, report
from holdfast.simulate.simulated_role import SimulatedRole, specs
from holdfast.simulate.standstill import Slower, Stretch

Steps = Generator[simpy.Event, Any, None]


class RolesLife:
    """All replicas of a job."""

    def __init__(
        self, env: simpy.Environment, roles: dict[str, SimulatedRole], seed: str, machines: Sequence[str]
    ) -> None:
        """``machines``: the job's, by slot, as they are at any time."""
        self._env, self._machines = env, machines
        self._specs = specs(roles)
        self._replicas = {
            (name, index): SimulatedReplica(name, index, role, Random(f"{seed}:role:{name}:{index}"))
            for name, role in roles.items()
            if name != TRAINER
            for index in range(role.replicas)
        }
        self.found = {name: RoleLife() for name in roles if name != TRAINER}
        self._stops = {
            name: roles[name].stops for name in roles.get(TRAINER, SimulatedRole()).needs if roles[name].stops
        }
        self._away = {name: roles[name].replicas for name in self.found}
        self._slower: deque[Slower] = deque()
        self._now_slower: Slower | None = None
        self._places = PlacesOfJob()
        self._lingering: set[ReplicaKey] = set()
        self._epoch, self._trained, self._waits = 0, False, True

    def start(self) -> None:
        """Begin: whatever needs nothing starts."""
        self._note_slower()
        for each in self._replicas.values():
            self._env.process(self._strike(each))
        self._decide()

    def finish(self) -> dict[str, RoleLife]:
        """Return what became of each role by now."""
        for each in self._replicas.values():
            self._count(each)
            self.found[each.name].wanted_s += self._env.now
        return self.found

    # What the trainer does to them

    def epoch(self, number: int) -> None:
        """Learn of a new start of the trainer. Replicas on a machine that came back without leaving start again."""
        self._epoch = number
        for each in self._replicas.values():
            if (
                each.state is ReplicaLife.AWAY
                and each.place is not None
                and each.place.machine in self._machines
            ):
                self._begin(each)
        self._decide()

    def trained(self) -> None:
        """Learn that the trainer makes steps."""
        if not self._trained:
            self._trained = True
            self._decide()

    def died(self, machines: Sequence[str]) -> None:
        """Let machines die, with the replicas on them."""
        for each in self._on(machines):
            if each.state is not ReplicaLife.FAILED:
                self._turn_to(each, ReplicaLife.AWAY)

    def left(self, machine: str) -> None:
        """Learn that a machine serves the job no longer: its replicas end, and are placed once they surely have."""
        for each in self._on((machine,)):
            assert each.place is not None
            self._turn_to(each, ReplicaLife.AWAY)
            key = key_of(each.place)
            self._lingering.add(key)
            self._env.process(self._over(key, each.role.move_s))

    def _on(self, machines: Sequence[str]) -> list[SimulatedReplica]:
        gone = frozenset(machines)
        return [each for each in self._replicas.values() if each.place and each.place.machine in gone]

    def _over(self, key: ReplicaKey, seconds: float) -> Steps:
        yield self._env.timeout(seconds)
        self._lingering.discard(key)
        self._decide()

    # What they do to the trainer

    def stretch(self, began: float, now: float) -> Stretch:
        """Return a stretch of training with the times in which it stood for a role. Stretches come in order."""
        while self._slower and self._slower[0].end <= began:
            self._slower.popleft()
        known = [*self._slower, *([self._now_slower] if self._now_slower else [])]
        stands = [each.within(began, now) for each in known if each.begin < now]
        return Stretch(began, now, [each for each in stands if each.seconds > 0])

    def stood(self, stretch: Stretch) -> None:
        """Account for what a stretch of training lost to roles."""
        for each in stretch.stands:
            self.found[each.role].trainer_s += each.seconds

    def _note_slower(self) -> None:
        """Note the role that takes most of the trainer's speed at present."""
        now, before = self._env.now, self._now_slower
        worst = max(
            (name for name in self._stops if self._away[name]), key=self._stops.__getitem__, default=""
        )
        if worst == (before.role if before else ""):
            return
        if before is not None:
            self._slower.append(before._replace(end=now))
        self._now_slower = Slower(now, float("inf"), worst, self._stops[worst]) if worst else None

    # Lives of replicas

    def _strike(self, each: SimulatedReplica) -> Steps:
        """Let a replica fail at random times; one that does not work at such a time is none the worse for it."""
        role, random = each.role, each.random
        while role.failures_per_s:
            yield self._env.timeout(random.expovariate(role.failures_per_s))
            bad = 0
            while random.random() < role.bad_starts:
                bad += 1
            stays = random.random() < role.machine_share
            if each.state is ReplicaLife.READY and each.place is not None:
                each.bad_starts, each.bad_machine = bad, each.place.machine if stays else ""
                self._end(each, announced=True)

    def _begin(self, each: SimulatedReplica) -> None:
        self.found[each.name].restarts += each.turn > 0
        self._turn_to(each, ReplicaLife.STARTING)
        each.began = self._env.now
        self._env.process(self._started(each, each.turn))

    def _started(self, each: SimulatedReplica, turn: int) -> Steps:
        yield self._env.timeout(each.role.start_s)
        if each.turn != turn or each.place is None:
            return
        if each.bad_machine == each.place.machine or each.bad_starts:
            each.bad_starts = max(0, each.bad_starts - 1)
            self._end(each, announced=False)
            return
        each.bad_machine = ""
        self._turn_to(each, ReplicaLife.READY)
        if each.place.tried or (self._waits and not self._away[each.name]):
            self._decide()

    def _end(self, each: SimulatedReplica, *, announced: bool) -> None:
        """End a run with a failure; the rule of its agent decides about the next."""
        now, found = self._env.now, self.found[each.name]
        found.failures += 1
        ended = restart.ReplicaEnd(now - each.began, 1, announced)
        after = restart.after(ended, each.role.restart, each.failures, each.restarts, now)
        each.failures = after.failures
        if after.pause_s is None:
            each.why = after.failed
            self._turn_to(each, ReplicaLife.FAILED)
            self._decide()
            return
        self._turn_to(each, ReplicaLife.PAUSING)
        self._env.process(self._again(each, each.turn, after.pause_s))

    def _again(self, each: SimulatedReplica, turn: int, pause_s: float) -> Steps:
        yield self._env.timeout(pause_s)
        if each.turn != turn:
            return
        each.restarts.append(self._env.now)
        self._begin(each)

    def _turn_to(self, each: SimulatedReplica, state: ReplicaLife) -> None:
        self._count(each)
        self._away[each.name] += (each.state is ReplicaLife.READY) - (state is ReplicaLife.READY)
        each.state, each.turn = state, each.turn + 1
        self._note_slower()

    def _count(self, each: SimulatedReplica) -> None:
        found, now = self.found[each.name], self._env.now
        found.ran_s += (now - each.since) * (each.state in (ReplicaLife.STARTING, ReplicaLife.READY))
        found.ready_s += (now - each.since) * (each.state is ReplicaLife.READY)
        each.since = now

    # Places

    def _decide(self) -> None:
        """Ask the policy of the gateway where the replicas belong, and do it."""
        if not self._replicas:
            return
        reports: dict[str, list[ReplicaState]] = {}
        for each in self._replicas.values():
            if each.place is not None and each.state in PHASES:
                reports.setdefault(each.place.machine, []).append(report(each, each.place))
        facts = RoleFacts(
            roles=self._specs,
            machines=self._machines,
            epoch=self._epoch,
            reports=reports,
            trained=self._trained,
            now=self._env.now,
            lingering=frozenset(self._lingering),
        )
        decided = decide(facts, self._places)
        self._places, self._waits = decided.places, bool(decided.waits)
        for place in decided.places.places:
            self._take(self._replicas[place.role, place.index], place)

    def _take(self, each: SimulatedReplica, place: ReplicaPlace) -> None:
        before, each.place = each.place, place
        if place.asked and not (before and before.asked):
            self.found[each.name].asked += 1
            self._env.process(self._later())
        if before is not None and before.generation == place.generation:
            return
        if before is not None:
            self.found[each.name].moves += before.machine != place.machine
            each.failures = 0
            each.restarts.clear()
        self._begin(each)

    def _later(self) -> Steps:
        """Look again once a replica about which a person is asked is due for another try."""
        yield self._env.timeout(RETRY_S + 1)
        self._decide()
