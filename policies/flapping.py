"""Machines that flap: their agent begins anew, or their link goes down and up, again and again.

Each time alone is nothing (an upgrade, a cable that was touched). So many within a window are a fault of the machine,
whatever works just now.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.models.alert import NETWORK_KINDS, Alert, AlertKind
from holdfast.policies.policy import FlapPolicy

RESTARTED = "agent_restarted"
"""The check (of a host fault) under which the ledger has an agent that began anew."""
_LINKS = (NETWORK_KINDS - {AlertKind.NIC_ERRORS, AlertKind.PACKET_LOSS}) | {"nic_down", "nic_flapping"}


def counts(alert: Alert) -> bool:
    """Whether it tells of something that went away and came back, or may."""
    check = alert.evidence.get("check")
    return alert.firing and (
        alert.kind in _LINKS or (alert.kind is AlertKind.HOST_FAULT and check in {RESTARTED, *_LINKS})
    )


def why(times: Iterable[float], now: float, policy: FlapPolicy) -> str:
    """Why a machine flaps; empty: it does not.

    Args:
        times: when such things were heard of it (Unix seconds), in any order.
        now: Unix seconds.
        policy: how often, within which window, what is one.
    """
    recent = sorted(at for at in times if now - policy.window_s < at)
    flaps = sum(
        at - before > policy.apart_s for before, at in zip([float("-inf"), *recent], recent, strict=False)
    )
    if flaps < policy.count:
        return ""
    return f"its agent or link came and went {flaps} times within {policy.window_s / 60:g} min"
