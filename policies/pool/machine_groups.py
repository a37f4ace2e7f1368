"""The group of a machine: by its name and the patterns in the policy file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from holdfast.models.base import Frozen
from holdfast.policies.config.pool import MachineGroupPolicy, SparePoolPolicy


class MachineGroup(Frozen):
    """One group with its rules."""

    name: str
    """Empty: machines that match no group's pattern."""
    policy: SparePoolPolicy


def groups(policy: SparePoolPolicy) -> tuple[MachineGroup, ...]:
    """Return all groups, in the order of the file; the nameless rest last."""
    named = tuple(
        MachineGroup(name=name, policy=_of_group(policy, rules)) for name, rules in policy.groups.items()
    )
    return (*named, MachineGroup(name="", policy=policy))


def _of_group(policy: SparePoolPolicy, rules: MachineGroupPolicy) -> SparePoolPolicy:
    """Return the rules of a group: its own, else the pool's; a limit of the pool gives way to one of its own."""
    own = {key: value for key, value in rules if key != "machines" and value is not None}
    if rules.minimum is None and rules.maximum is not None:
        own["minimum"] = min(policy.minimum, rules.maximum)
    elif rules.maximum is None and rules.minimum is not None:
        own["maximum"] = max(policy.maximum, rules.minimum)
    return policy.model_copy(update=own)


def group_of(machine: str, policy: SparePoolPolicy) -> str:
    """Return the first group whose pattern the machine's name matches; empty: none."""
    for name, rules in policy.groups.items():
        if fnmatchcase(machine, rules.machines):
            return name
    return ""


def split(values: Mapping[str, float] | Iterable[str], policy: SparePoolPolicy) -> dict[str, float]:
    """Sum values by machine (or count machines) into groups; every group is there."""
    by_machine = values if isinstance(values, Mapping) else dict.fromkeys(values, 1.0)
    sums = {group.name: 0.0 for group in groups(policy)}
    for machine, value in by_machine.items():
        sums[group_of(machine, policy)] += value
    return sums
