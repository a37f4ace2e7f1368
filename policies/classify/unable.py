"""Machines on which no rank can run, whatever is decided: their agent, their kernel or a GPU is gone."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.models.alert import Alert, AlertKind
from holdfast.policies.classify import sure_signs
from holdfast.policies.config.policy import ClassifyPolicy

_GONE = frozenset(
    {AlertKind.MACHINE_LOST, AlertKind.GPU_LOST, AlertKind.KERNEL_PANIC, AlertKind.XID, AlertKind.SXID}
)
"""Kinds that, where they prove a fault of the machine, say that a part is gone; others say that it may fail again."""


def find(alerts: Iterable[Alert], policy: ClassifyPolicy) -> dict[str, str]:
    """Return the machines and why no rank can run there; in the order of ``alerts``."""
    found: dict[str, str] = {}
    for alert in alerts:
        if alert.machine and alert.kind in _GONE and sure_signs.is_sure(alert, policy):
            found.setdefault(alert.machine, sure_signs.describe(alert))
    return found
