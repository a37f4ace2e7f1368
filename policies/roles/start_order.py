"""Which roles of a job may start by now."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from holdfast.models.roles import TRAINER, RoleSpec


def may_start(
    roles: Mapping[str, RoleSpec], ready: Collection[str], *, started: Collection[str] = ()
) -> list[str]:
    """Return the roles whose needs are all ready; those that were ``started`` stay, whatever becomes of their needs."""
    return [
        name
        for name, role in roles.items()
        if name != TRAINER and (name in started or all(needed in ready for needed in role.needs))
    ]


def waits_for(roles: Mapping[str, RoleSpec], name: str, ready: Collection[str]) -> list[str]:
    """Return the needs of ``name`` that are not ready."""
    role = roles.get(name)
    return [needed for needed in role.needs if needed not in ready] if role else []


def all_ready(role: RoleSpec, announced: int) -> bool:
    """Return whether a role is ready for those that need it: each of its replicas has announced its address."""
    return announced >= role.replicas
