"""Machines on one switch: when several of them fail together, the switch is at fault."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from holdfast.models.alert import Alert, AlertKind
from holdfast.policies.config.thresholds import NetworkLimits

NONE_KNOWN: Mapping[str, Iterable[str]] = {}


def of(machine: str, alerts: Iterable[Alert], switches: Mapping[str, Iterable[str]] = NONE_KNOWN) -> str:
    """Return the machine's switch; empty: not known.

    Args:
        machine: its name.
        alerts: a fault of a switch names its machines.
        switches: shell patterns of machine names by switch.
    """
    for switch, patterns in sorted(switches.items()):
        if any(fnmatchcase(machine, pattern) for pattern in patterns):
            return switch
    for alert in alerts:
        if alert.kind is AlertKind.SWITCH_DOWN and machine in alert.evidence.get("machines", ()):
            return str(alert.evidence.get("switch", ""))
    return ""


def shared(
    machines: Sequence[str], alerts: Sequence[Alert], switches: Mapping[str, Iterable[str]] = NONE_KNOWN
) -> str:
    """Return the one switch of at least two ``machines``; empty: one machine, several switches, or not known."""
    found = {of(machine, alerts, switches) for machine in machines}
    return found.pop() if len(set(machines)) > 1 and len(found) == 1 else ""


def suspected(missing: Iterable[str], machines: Iterable[str], limits: NetworkLimits) -> dict[str, list[str]]:
    """Return the switches that explain which machines have lost their network, with those machines, sorted.

    Args:
        missing: machines with a network fault within the window.
        machines: all machines that are watched; a switch is judged by its share of them.
        limits: ``switches`` names the machines of each by shell patterns.
    """
    lost, known = set(missing), list(machines)
    if not lost.intersection(known):
        return {}
    below: dict[str, list[str]] = defaultdict(list)
    for name in known:
        below[of(name, (), limits.switches)].append(name)
    found: dict[str, list[str]] = {}
    for switch in sorted(limits.switches):
        failed = sorted(name for name in below[switch] if name in lost)
        if len(failed) >= limits.switch_machines and len(failed) >= limits.switch_share * len(below[switch]):
            found[switch] = failed
    return found
