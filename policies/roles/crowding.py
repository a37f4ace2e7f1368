"""Roles whose replicas compute with more threads than the machines that may carry them have cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.models.roles import RoleSpec
from holdfast.policies.counted import counted


def crowded(name: str, role: RoleSpec, machines: Sequence[str], cores: Mapping[str, int]) -> str:
    """Return the numbers, and what to do about them; empty: there are cores enough, or not all machines' are known.

    A warning and no refusal: replicas that wait for the network most of the time share cores well.

    Args:
        name: the role.
        role: its specification.
        machines: those that may carry its replicas: the role's own, or the job's.
        cores: of each machine that reported them.
    """
    known = sorted((cores.get(each, 0) for each in machines), reverse=True)
    if not known or not known[-1]:
        return ""
    carry = known[: role.machines or None]
    threads, there = role.cpus * role.replicas, sum(carry)
    if threads <= there:
        return ""
    on = counted(len(carry), "machine", "machines")
    shared = "" if role.own_machines else ", which the ranks use too: steps may become slow"
    return (
        f"roles.{name}: {role.replicas} replicas x {role.cpus} cpus are {threads} threads, and {on} that may carry "
        f"them {'has' if len(carry) == 1 else 'have'} {there} cores{shared}. "
        "Take fewer replicas (`holdfast scale`) or `cpus`"
    )
