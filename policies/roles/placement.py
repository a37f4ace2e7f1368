"""Places of the replicas of a role: spread over the machines, and kept where they are as long as that is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from holdfast.models.roles import Place, RoleSpec, WithTrainer


@dataclass(frozen=True)
class Placed:
    """The places of a role from now on, and the replicas for which there is no room."""

    places: tuple[Place, ...]
    unplaced: tuple[int, ...] = ()


def place(  # noqa: PLR0917
    name: str,
    role: RoleSpec,
    machines: Sequence[str],
    before: Sequence[Place],
    generations: Mapping[int, int],
    epoch: int,
    load: Mapping[str, int] | None = None,
) -> Placed:
    """Return where each replica of ``name`` belongs.

    Args:
        name: the role.
        role: its specification.
        machines: machines of the job that are in service.
        before: its places up to now.
        generations: the highest generation that each index ever had.
        epoch: the trainer's epoch.
        load: replicas of other roles on each machine; the emptier one is taken.
    """
    known = {each.index: each for each in before}
    kept = [
        each
        for index in range(role.replicas)
        if (each := known.get(index)) is not None and (each.asked or _stays(each, role, machines, epoch))
    ]
    taken = Counter(each.machine for each in kept if each.machine in machines)
    of_others = load or {}
    unplaced = []
    for index in range(role.replicas):
        if any(each.index == index for each in kept):
            continue
        old = known.get(index)
        machine = _emptiest(role, machines, taken, of_others, old.tried if old else ())
        if machine is None:
            unplaced.append(index)
            continue
        taken[machine] += 1
        kept.append(
            Place(
                role=name,
                index=index,
                machine=machine,
                generation=generations.get(index, 0) + 1,
                epoch=epoch,
                tried=old.tried if old else (),
                incident=old.incident if old else "",
            )
        )
    return Placed(tuple(sorted(kept, key=lambda each: each.index)), tuple(unplaced))


def after_failure(place: Place, role: RoleSpec, why: str, now: float) -> Place:
    """Return the place of a replica that passed its failure limit where it is: to be moved, or a person is asked."""
    tried = (*place.tried, place.machine)
    if len(tried) > role.restart.moves:
        failed = f"{why} on {', '.join(dict.fromkeys(tried))}"
        return place.model_copy(update={"tried": tried, "asked": failed, "asked_at": now})
    return place.model_copy(update={"tried": tried})


def _stays(place: Place, role: RoleSpec, machines: Collection[str], epoch: int) -> bool:
    if place.machine not in machines or place.machine in place.tried:
        return False
    return role.with_trainer is WithTrainer.STAY or place.epoch == epoch


def _emptiest(
    role: RoleSpec,
    machines: Sequence[str],
    taken: Mapping[str, int],
    of_others: Mapping[str, int],
    tried: Collection[str],
) -> str | None:
    """Return the machine with the fewest replicas of this role, then of others; one where it failed only if need be."""
    open_to = [
        machine for machine in machines if not role.per_machine or taken.get(machine, 0) < role.per_machine
    ]
    used = {machine for machine, number in taken.items() if number}
    if role.machines and len(used) >= role.machines:
        open_to = [machine for machine in open_to if machine in used]
    order = {machine: at for at, machine in enumerate(machines)}
    return min(
        open_to,
        key=lambda machine: (
            machine in tried,
            taken.get(machine, 0),
            of_others.get(machine, 0),
            order[machine],
        ),
        default=None,
    )
