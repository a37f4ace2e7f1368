"""Decisions about a job's replicas, by its roles, the machines in service and what agents report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.models.location import Location
from holdfast.models.roles import (
    TRAINER,
    Member,
    PlacesOfJob,
    ReplicaPhase,
    ReplicaPlace,
    ReplicaState,
    RoleSpec,
)
from holdfast.policies.roles.placement import after_failure, place
from holdfast.policies.roles.start_order import all_ready, may_start, waits_for

RETRY_S = 600.0
"""A replica about which a person is asked is tried once more after so long: nothing is given up for good."""


ReplicaKey = tuple[str, int, int]
"""Role, index and generation."""


def key_of(place: ReplicaPlace) -> ReplicaKey:
    """Return the replica that belongs there."""
    return place.role, place.index, place.generation


@dataclass(frozen=True)
class RoleFacts:
    """A job's roles at one moment."""

    roles: Mapping[str, RoleSpec]
    machines: Sequence[str]
    """Machines that carry the job's ranks and are in service, by slot."""
    epoch: int
    reports: Mapping[str, Sequence[ReplicaState]]
    """The newest report of each of these machines."""
    trained: bool
    """A rank made a step, or announced an address, in this epoch."""
    now: float
    lingering: frozenset[ReplicaKey] = frozenset()
    """Replicas whose machine serves their role no longer, and which may still run there."""
    lasting: frozenset[ReplicaKey] = frozenset()
    """Replicas whose present run has lasted for as long as a good one does."""
    locations: Mapping[str, Location] = field(default_factory=dict)
    """Domains by level of these machines, and of those where replicas linger."""
    own: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Machines in service that a role has for itself, by role."""

    def carriers(self, role: str) -> Sequence[str]:
        """Return the machines in service on which replicas of a role may be: its own, or those of the ranks."""
        return self.own.get(role, ()) if self.roles[role].own_machines else self.machines


@dataclass(frozen=True)
class Decided:
    """Where every replica belongs, who can be reached, and what cannot start."""

    places: PlacesOfJob
    members: tuple[Member, ...]
    ready: frozenset[str]
    waits: Mapping[str, tuple[str, ...]]
    """Roles that wait for others to be ready."""
    unplaced: Mapping[str, tuple[int, ...]]
    """Replicas for which there is no room."""
    lingering: frozenset[ReplicaKey] = frozenset()
    """Replicas that are to end where they are, and are placed elsewhere after that: no plan has them."""


def decide(facts: RoleFacts, before: PlacesOfJob) -> Decided:
    """Return where the replicas belong from now on."""
    reports = _by_place(facts)
    known = [_judged(each, facts, reports) for each in before.places if each.role in facts.roles]
    members = (*_members(known, reports), *_trainers(facts))
    ready = _ready(facts, members)
    started = {each.role for each in known}
    result, unplaced = before, {}
    for gone in {each.role for each in before.places} - facts.roles.keys():
        result = result.with_role(gone, ())
    load = Counter(each.machine for each in known)
    for name in may_start(facts.roles, ready, started=started):
        own = [each for each in known if each.role == name and not _due(each, facts.now)]
        own += [_unplaced(each) for each in known if each.role == name and _due(each, facts.now)]
        others = load - Counter(each.machine for each in own)
        placed = place(
            name,
            facts.roles[name],
            facts.carriers(name),
            own,
            before.generations.get(name, {}),
            facts.epoch,
            others,
            facts.now,
            {each.index for each in own if key_of(each) in facts.lingering},
            _ending(name, own, reports),
            _domains(facts, facts.roles[name].spread),
        )
        load = others + Counter(each.machine for each in placed.places)
        result = result.with_role(name, placed.places)
        if placed.unplaced:
            unplaced[name] = placed.unplaced
    waits = {
        name: tuple(waits_for(facts.roles, name, ready))
        for name in facts.roles
        if not result.of(name) and waits_for(facts.roles, name, ready)
    }
    present = {(each.role, each.index, each.generation) for each in result.places}
    stay = tuple(
        each
        for each in members
        if each.role == TRAINER or (each.role, each.index, each.generation) in present
    )
    return Decided(result, stay, ready, waits, unplaced, facts.lingering & present)


Reports = Mapping[tuple[str, int, int, str], ReplicaState]


def _by_place(facts: RoleFacts) -> Reports:
    return {
        (each.role, each.index, each.generation, machine): each
        for machine, reports in facts.reports.items()
        for each in reports
    }


def _ending(role: str, places: Sequence[ReplicaPlace], reports: Reports) -> frozenset[int]:
    """Return indices that have no place, and still run where they had one: their role was smaller for a moment."""
    placed = {each.index for each in places}
    live = (ReplicaPhase.RUNNING, ReplicaPhase.PAUSING)
    return frozenset(
        index
        for (name, index, _, _), report in reports.items()
        if name == role and index not in placed and report.phase in live
    )


def _domains(facts: RoleFacts, level: str) -> dict[str, str]:
    """Return the domain of each machine at a level, as far as it is known."""
    found = ((machine, where.get(level, "")) for machine, where in facts.locations.items() if level)
    return {machine: domain for machine, domain in found if domain}


def _report(place: ReplicaPlace, reports: Reports) -> ReplicaState | None:
    return reports.get((place.role, place.index, place.generation, place.machine))


def _judged(place: ReplicaPlace, facts: RoleFacts, reports: Reports) -> ReplicaPlace:
    """Return the place with its agent's report of the replica taken into account."""
    report = _report(place, reports)
    if report is None or place.asked or place.machine in place.tried:
        return place
    if report.phase is ReplicaPhase.FAILED:
        return after_failure(place, facts.roles[place.role], report.why, facts.now, report.restarts)
    good = report.address or key_of(place) in facts.lasting
    if good and (place.tried or place.incident):
        return place.model_copy(update={"tried": (), "incident": ""})
    return place


def _due(place: ReplicaPlace, now: float) -> bool:
    return bool(place.asked) and now - place.asked_at >= RETRY_S


def _unplaced(place: ReplicaPlace) -> ReplicaPlace:
    """Return a place that no machine has, so that its replica is placed again, on any machine."""
    return place.model_copy(update={"tried": (), "asked": "", "machine": ""})


def _members(places: Sequence[ReplicaPlace], reports: Reports) -> list[Member]:
    found = []
    for each in places:
        report = _report(each, reports)
        if report is not None and report.address and not each.asked:
            found.append(
                Member(role=each.role, index=each.index, generation=each.generation, address=report.address)
            )
    return found


def _trainers(facts: RoleFacts) -> list[Member]:
    return [
        Member(role=TRAINER, index=each.index, generation=each.generation, address=each.address)
        for machine in facts.machines
        for each in facts.reports.get(machine, ())
        if each.role == TRAINER and each.generation == facts.epoch and each.address
    ]


def _ready(facts: RoleFacts, members: Sequence[Member]) -> frozenset[str]:
    announced = Counter(each.role for each in members)
    ready = {
        name for name, role in facts.roles.items() if name != TRAINER and all_ready(role, announced[name])
    }
    return frozenset(ready | ({TRAINER} if facts.trained or announced[TRAINER] else set()))
