"""Failure domains in a diagnosis: machines of one switch or rack whose transfers fail or are slow together.

Then what they share is suspected, and none of them: to evict one after the other would cost many good machines, and
their replacements would stand behind the same switch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from holdfast.models.machine import Machine
from holdfast.policies.config.policy import Policy
from holdfast.policies.join_names import join_names
from holdfast.policies.pool import topology

Domains = Mapping[str, frozenset[str]]
"""Machines by the domain's name, such as ``switch leaf-1``."""


def known(machines: Sequence[Machine], policy: Policy) -> dict[str, frozenset[str]]:
    """Return the domains of the machines; one that holds all of them explains nothing, nor does one of a few."""
    found: dict[str, set[str]] = defaultdict(set)
    for machine, location in zip(machines, topology.locations(machines, policy), strict=True):
        for level, name in location.items():
            found[f"{level} {name}"].add(machine.name)
    least = policy.detect.network.switch_machines
    return {
        name: frozenset(members)
        for name, members in sorted(found.items())
        if least <= len(members) < len(machines)
    }


def shared(
    bad: Collection[str], domains: Domains, share: float, good: Collection[str] = ()
) -> dict[str, frozenset[str]]:
    """Return the domains that explain machines with a bad network, each with those machines.

    Args:
        bad: machines with a bad network.
        domains: of all machines that were tested.
        share: so large a part of a domain must be bad; of two domains with the same bad machines the smaller counts.
        good: machines whose transfers are well: a domain with as many of them is none that explains the bad ones.
    """
    found: dict[str, frozenset[str]] = {}
    well = frozenset(good)
    for name, members in sorted(domains.items(), key=lambda item: (len(item[1]), item[0])):
        hit = members & frozenset(bad)
        most = len(hit) >= share * len(members) and len(hit) > len(members & well)
        if len(hit) > 1 and most and hit not in found.values():
            found[name] = hit
    return found


def describe(found: Domains) -> list[str]:
    """Return a sentence about each."""
    return [
        f"transfers of {join_names(sorted(hit))} fail or are slow, and they share {name}: it is suspected, not they"
        for name, hit in found.items()
    ]
