"""Where machines are: the rack, switch or NVLink domain that several of them share and lose together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from holdfast.models.location import SWITCH, Location
from holdfast.models.machine import Machine
from holdfast.policies.config.policy import Policy


def locate(machine: str, reported: Location, policy: Policy) -> dict[str, str]:
    """Return the machine's domains by level. The policy file's patterns go before what its agent reports.

    Args:
        machine: its name.
        reported: domains by level, as its agent registered them.
        policy: ``topology.domains``, and ``detect.network.switches`` as the level ``switch``.
    """
    found = dict(reported)
    levels = {SWITCH: policy.detect.network.switches, **policy.topology.domains}
    for level, domains in levels.items():
        if domain := _matching(machine, domains):
            found[level] = domain
    return found


def locations(machines: Sequence[Machine], policy: Policy) -> list[dict[str, str]]:
    """Return the domains of each machine, in the order given."""
    return [locate(machine.name, machine.location, policy) for machine in machines]


def common(one: Location, other: Location) -> int:
    """Return the number of levels at which both are in the same domain."""
    return sum(other.get(level) == domain for level, domain in one.items())


def nearest_first(old: Machine, standbys: Sequence[Machine], policy: Policy) -> list[str]:
    """Order standbys for the place of ``old``: those that share most domains with it first.

    A standby in the same NVLink domain or below the same switch leaves the job's paths as they are. Standbys that are
    equally near keep their order.
    """
    here = locate(old.name, old.location, policy)
    if not here:
        return [each.name for each in standbys]

    def distance(machine: Machine) -> int:
        return -common(here, locate(machine.name, machine.location, policy))

    return [each.name for each in sorted(standbys, key=distance)]


def _matching(machine: str, domains: Mapping[str, Sequence[str]]) -> str:
    for domain, patterns in sorted(domains.items()):
        if any(fnmatchcase(machine, pattern) for pattern in patterns):
            return domain
    return ""
