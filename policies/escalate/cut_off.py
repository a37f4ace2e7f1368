"""Ranks that their machine ended because it heard no gateway: was it the machine's network, or did others wait too?

A host without processor time and a busy gateway look like a cut cable to the agent. Where other machines heard the
gateway late at the same time, what they share is at fault, and no other machine would fare better.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from holdfast.models.alert import Alert, AlertKind
from holdfast.policies.detect.silence import CUT_OFF, LATE_S, LATE_SHARE
from holdfast.policies.join_names import join_names

_NAMED = 3


def is_cut_off(alert: Alert) -> bool:
    """Return whether it reports ranks that were ended because the gateway was not heard."""
    return alert.kind is AlertKind.RANK_EXIT and alert.evidence.get("error_type") == CUT_OFF


def late(late_s: Mapping[str, float], but: str) -> dict[str, object]:
    """Return the evidence about the machines other than ``but``.

    Args:
        late_s: seconds since each machine in service was late last, by name; infinite: it never was.
        but: the machine that was cut off.
    """
    others = sorted(name for name in late_s if name != but)
    also = [name for name in others if late_s[name] <= LATE_S]
    if not also or len(also) < LATE_SHARE * len(others):
        return {}
    return {"late_elsewhere": f"{join_names(also, _NAMED)} heard the gateway late as well"}


def why_none(alerts: Sequence[Alert]) -> str:
    """Return why ranks of the job were cut off, where all that ended were while others were late; else empty."""
    also = _late_as_well(alerts)
    return f"the gateway or the hosts were busy ({also})" if also else ""


def why_spared(accused: Collection[str], alerts: Sequence[Alert]) -> str:
    """Return why no accused machine is evicted; empty: nothing is in the way.

    Args:
        accused: names of machines.
        alerts: of the incident. A machine that anything else speaks against is not spared.
    """
    reasons: list[str] = []
    for name in accused:
        also = _late_as_well([each for each in alerts if each.machine == name])
        if not also:
            return ""
        reasons.append(f"{also}: the gateway or the hosts were busy, and {name} is not at fault")
    return "; ".join(reasons)


def _late_as_well(alerts: Sequence[Alert]) -> str:
    """Return which others were late, where all roots are ranks that were cut off meanwhile; else empty."""
    roots = [each for each in alerts if not each.evidence.get("cascade")]
    also = [str(each.evidence.get("late_elsewhere") or "") for each in roots if is_cut_off(each)]
    return also[0] if also and all(also) and len(also) == len(roots) else ""
