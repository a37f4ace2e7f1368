"""Places of the replicas of a role: spread over the machines, and kept where they are as long as that is right."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.models.roles import ReplicaPlace, RoleSpec, WithTrainer


@dataclass(frozen=True)
class RolePlaces:
    """The places of a role from now on, and the replicas for which there is no room."""

    places: tuple[ReplicaPlace, ...]
    unplaced: tuple[int, ...] = ()


def place(  # noqa: PLR0917
    name: str,
    role: RoleSpec,
    machines: Sequence[str],
    before: Sequence[ReplicaPlace],
    generations: Mapping[int, int],
    epoch: int,
    load: Mapping[str, int] | None = None,
    now: float = 0.0,
    lingering: Collection[int] = (),
    ending: Collection[int] = (),
    domains: Mapping[str, str] | None = None,
) -> RolePlaces:
    """Return where each replica of ``name`` belongs.

    Args:
        name: the role.
        role: its specification.
        machines: machines of the job that are in service.
        before: its places up to now.
        generations: the highest generation that each index ever had.
        epoch: the trainer's epoch.
        load: replicas of other roles on each machine; the emptier one is taken.
        now: Unix seconds.
        lingering: indices whose machine serves no longer, and which may still run there: they are placed once they
            are known to have ended.
        ending: indices without a place that still run on a machine, whose agent ends them: likewise.
        domains: of each machine at the role's level of ``spread``; one that is not known is a domain of its own.
    """
    known, serving = {each.index: each for each in before}, frozenset(machines)
    kept = {
        index: each
        for index in range(role.replicas)
        if (each := known.get(index)) is not None
        and (each.asked or index in lingering or _stays(each, role, serving, epoch))
    }
    for index in range(role.replicas):
        each = known.get(index)
        if index not in kept and each is not None and _stays(each, role, serving, each.epoch):
            # It starts again with the trainer, where it is: its agent ends the former one first.
            kept[index] = each.model_copy(
                update={
                    "generation": generations.get(index, 0) + 1,
                    "epoch": epoch,
                    "restarts": each.restarts + 1,
                }
            )
    missing = [index for index in range(role.replicas) if index not in kept and index not in ending]
    if not missing:
        return RolePlaces(tuple(kept[index] for index in sorted(kept)))
    room = _Room(role, machines, (each.machine for each in kept.values()), load or {}, domains or {})
    unplaced = []
    for index in missing:
        old = known.get(index)
        tried = old.tried if old else ()
        if (machine := room.take(tried)) is None:
            unplaced.append(index)
            continue
        if old is not None and machine in tried:
            if old.machine in tried:  # it failed where it is, and wherever there is room
                on = ", ".join(dict.fromkeys(tried))
                why = f"{old.failed or 'it failed'} on {on}, and no other machine has room for it"
                kept[index] = old.model_copy(update={"asked": why, "asked_at": now})
                continue
            tried = ()  # it left the last one for another reason
        kept[index] = ReplicaPlace(
            role=name,
            index=index,
            machine=machine,
            generation=generations.get(index, 0) + 1,
            epoch=epoch,
            tried=tried,
            incident=old.incident if old else "",
            restarts=old.restarts + 1 if old else 0,
        )
    return RolePlaces(tuple(kept[index] for index in sorted(kept)), tuple(unplaced))


def after_failure(
    place: ReplicaPlace, role: RoleSpec, why: str, now: float, restarts: int = 0
) -> ReplicaPlace:
    """Return the place of a replica that passed its failure limit where it is: to be moved, or a person is asked.

    Args:
        place: its place.
        role: its specification.
        why: how it failed.
        now: Unix seconds.
        restarts: of it where it is.
    """
    tried = (*place.tried, place.machine)
    counted = {"tried": tried, "failed": why, "restarts": place.restarts + restarts}
    if len(tried) > role.restart.moves:
        failed = f"{why} on {', '.join(dict.fromkeys(tried))}"
        return place.model_copy(update={**counted, "asked": failed, "asked_at": now})
    return place.model_copy(update=counted)


def _stays(place: ReplicaPlace, role: RoleSpec, serving: Collection[str], epoch: int) -> bool:
    if place.machine not in serving or place.machine in place.tried:
        return False
    return role.with_trainer is WithTrainer.STAY or place.epoch == epoch


_Entry = tuple[int, int, int, int]
"""Replicas of the role in the machine's domain, and on it; those of others on it; and its number."""


class _Room:
    """Machines by how full they are: where the fewest replicas of this role are, in the domain and on the machine.

    Then where the fewest of others are.
    """

    def __init__(
        self,
        role: RoleSpec,
        machines: Sequence[str],
        taken: Iterable[str],
        of_others: Mapping[str, int],
        domains: Mapping[str, str],
    ) -> None:
        self._role = role
        self._machines = machines
        self._taken = Counter(dict.fromkeys(machines, 0))
        there = list(taken)
        self._taken.update(machine for machine in there if machine in self._taken)
        self._domains = domains
        # Those that end on a machine that serves no longer count as well: its domain may serve.
        self._in_domain = Counter(map(self._domain, there))
        self._others = of_others
        self._used = sum(1 for number in self._taken.values() if number)
        self._heap = [self._entry(at) for at in range(len(machines))]
        heapq.heapify(self._heap)

    def take(self, tried: Collection[str]) -> str | None:
        """Take the emptiest machine; one that was ``tried`` only if there is no other. None: there is no room."""
        passed: list[_Entry] = []
        found: _Entry | None = None
        while self._heap:
            entry = heapq.heappop(self._heap)
            if entry != (now := self._entry(entry[-1])):  # another machine of its domain was taken meanwhile
                heapq.heappush(self._heap, now)
                continue
            passed.append(entry)
            if not self._is_full(entry) and self._machines[entry[-1]] not in tried:
                found = entry
                break
        if found is None:  # the first of those that were tried
            found = next((entry for entry in passed if not self._is_full(entry)), None)
        for entry in passed:
            if entry is not found and not self._is_full(entry):
                heapq.heappush(self._heap, entry)
        if found is None:
            return None
        machine = self._machines[found[-1]]
        self._used += not self._taken[machine]
        self._taken[machine] += 1
        self._in_domain[self._domain(machine)] += 1
        heapq.heappush(self._heap, self._entry(found[-1]))
        return machine

    def _domain(self, machine: str) -> tuple[str, ...]:
        """Return the domain of a machine; one that is not known is its own, and shares no name with any other."""
        known = self._domains.get(machine)
        return (machine, "") if known is None else (known,)

    def _entry(self, at: int) -> _Entry:
        machine = self._machines[at]
        near = self._in_domain[self._domain(machine)] if self._role.spread else 0
        return near, self._taken[machine], self._others.get(machine, 0), at

    def _is_full(self, entry: _Entry) -> bool:
        """Whether it has no room for this role any more."""
        limit, most = self._role.per_machine, self._role.machines
        near, taken = entry[:2]
        if self._role.spread_required and near:
            return True
        return bool(limit and taken >= limit) or bool(most and self._used >= most and not taken)
