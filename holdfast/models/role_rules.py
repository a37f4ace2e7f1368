"""Rules for the roles of one job together: the order of their start, and room for their replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.models.roles import MACHINE, TRAINER, RoleKind, RoleSpec


def problem(roles: Mapping[str, RoleSpec]) -> str:
    """Return the first thing that is wrong with a job's roles, whatever its size; empty: nothing."""
    wrong = (_wrong(name, role, roles) for name, role in roles.items())
    return next(filter(None, wrong), "") or _cycle(roles)


def no_room(roles: Mapping[str, RoleSpec], machines: int) -> str:
    """Return why a job of this size cannot start with these roles; empty: it can.

    Not part of what a role is: a job that is scaled later keeps its roles, and replicas without room wait.
    """
    for name, role in roles.items():
        if name == TRAINER:
            continue
        if not role.replicas:
            return f"roles.{name}.replicas = 0: expected at least 1 (`holdfast scale` may take it to 0 later)"
        if role.machines > machines:
            return f"roles.{name}.machines = {role.machines}: the job has {machines}"
        carriers = role.own_machines or role.machines or machines
        if role.spread == MACHINE and role.spread_required and role.replicas > carriers:
            return (
                f"roles.{name}.replicas = {role.replicas}: no two of them may share a machine (spread_required), and "
                f"there are {carriers}"
            )
        if role.per_machine and role.replicas > (room := carriers * role.per_machine):
            return (
                f"roles.{name}.replicas = {role.replicas}: there is room for {room} "
                f"({role.per_machine} per machine on {carriers})"
            )
    return ""


def idle(roles: Mapping[str, RoleSpec]) -> str:
    """Return which role wants more machines of its own than it has replicas to put on them; empty: none does.

    As :func:`no_room` not part of what a role is: one that is scaled down later keeps its machines.
    """
    for name, role in roles.items():
        if role.own_machines > role.replicas:
            return (
                f"roles.{name}.own_machines = {role.own_machines}: there are {role.replicas} replicas for them, and "
                "some would stand idle"
            )
    return ""


def own_machines(roles: Mapping[str, RoleSpec]) -> dict[str, int]:
    """Return how many machines of its own each role wants, of those that want any."""
    return {name: role.own_machines for name, role in roles.items() if role.own_machines}


def _wrong(name: str, role: RoleSpec, roles: Mapping[str, RoleSpec]) -> str:
    for needed in role.needs:
        if needed not in roles and needed != TRAINER:
            known = ", ".join(sorted({*roles, TRAINER}))
            return f"roles.{name}.needs = {needed!r}: there is no such role. Roles: {known}"
    if name == TRAINER:
        own = RoleSpec(kind=role.kind, needs=role.needs)
        if role != own or role.kind not in (RoleKind.RIGID, RoleKind.DYNAMIC):
            return (
                f"roles.{TRAINER}: the trainer is the job itself (`script`, `machines` and the rest at the top of the "
                "job file); only `needs` may stand here"
            )
        return ""
    if role.kind is RoleKind.RIGID:
        return f"roles.{name}.kind = rigid: a job has one rigid role, its trainer. Take dynamic or ordered"
    if not role.script:
        return f"roles.{name}.script: missing; expected the path of the script that its replicas run"
    return _two_places(name, role)


def _two_places(name: str, role: RoleSpec) -> str:
    if not (role.own_machines and role.machines):
        return ""
    return (
        f"roles.{name}.machines = {role.machines}: it limits how many of the ranks' machines the role uses, and "
        f"own_machines = {role.own_machines} gives it others. Leave one of the two out"
    )


def _cycle(roles: Mapping[str, RoleSpec]) -> str:
    """Return a cycle in the order of the roles, as a message; empty: there is none."""
    done: set[str] = set()
    for start in roles:
        if found := _walk(start, roles, done, []):
            return f"roles: {' needs '.join(found)}: a cycle, none of them could start first"
    return ""


def _walk(name: str, roles: Mapping[str, RoleSpec], done: set[str], path: list[str]) -> Sequence[str]:
    if name in path:
        return [*path[path.index(name) :], name]
    if name in done or name not in roles:
        return ()
    for needed in roles[name].needs:
        if found := _walk(needed, roles, done, [*path, name]):
            return found
    done.add(name)
    return ()
