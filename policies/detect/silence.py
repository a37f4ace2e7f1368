"""Silence between gateway and machine: how long it may last, whom it accuses, and how a machine reacts to it.

A machine that the gateway does not hear may run on: only its network is cut. Two rules keep a job from running twice.
The gateway gives a silent machine up after :func:`lease_s` at the earliest, and a new epoch starts only when that much
time has passed since the machine could last be allowed to go on. The machine itself has stopped its ranks by then,
unless the machines that it can still reach do not hear the gateway either: then the gateway itself is away, and
training goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.models.agent import Contact
from holdfast.models.base import Frozen
from holdfast.policies.config.policy import GatewayPolicy

MIN_WINDOW_S = 1.5
"""Heartbeats are never missed sooner than this, however short their interval."""
MIN_LEASE_S = 5.0
"""A machine that does not refuse, but does not answer either, may be busy: it gets at least so many seconds."""
ASK_SHARE = 0.6
"""After this part of the lease a machine asks others when they heard the gateway ..."""
ANSWER_SHARE = 0.2
"""... and waits so long for their answers; the rest is for ending its ranks."""
WITNESSES = 3
CUT_OFF = "CutOff"
"""Error type under which a machine reports that it ended its ranks."""
LATE_S = 30.0
"""Others that were late within so many seconds were late at the same time ..."""
LATE_SHARE, MIN_LATE = 0.25, 2
"""... and where this share of them was, and so many, it is no coincidence."""
REMEMBERED_S = 300.0
"""A machine reports its longest silence within so many seconds."""


class AskedPeer(Frozen):
    """Result of asking another machine about the gateway."""

    name: str
    reached: bool
    """It answered, or its host refused: the network between us works."""
    contact: Contact | None = None
    """Its answer; None: no answer."""


def window_s(heartbeat_s: float, policy: GatewayPolicy) -> float:
    """Return the silence that calls for a probe, in seconds."""
    return max(MIN_WINDOW_S, policy.missed_heartbeats * heartbeat_s)


def lease_s(heartbeat_s: float, policy: GatewayPolicy) -> float:
    """Return the silence after which a machine that does not answer a probe either is given up, in seconds."""
    return max(MIN_LEASE_S, 3 * window_s(heartbeat_s, policy))


def longest_delay_s(heartbeat_s: float, policy: GatewayPolicy) -> float:
    """Return the longest silence of the gateway that a lease can cover, in seconds: a longer one was no delay."""
    return heartbeat_s + max(lease_s(heartbeat_s, policy), policy.longest_lease_s)


def wanted_lease_s(heartbeat_s: float, policy: GatewayPolicy, longest_s: float) -> float:
    """Return the lease of a machine that heard the gateway late, in seconds: never shorter than that of others.

    An agent or a gateway that gets no processor answers late, and is not cut off. What was late once must fit into the
    wait for answers that ends a lease (:data:`ANSWER_SHARE`). Doubled until it does, so that it seldom changes.

    Args:
        heartbeat_s: interval of heartbeats.
        policy: the longest lease; a longer silence was no delay, and lengthens nothing.
        longest_s: the longest silence of the gateway that the machine met lately.
    """
    usual_s = lease_s(heartbeat_s, policy)
    if longest_s > longest_delay_s(heartbeat_s, policy):
        return usual_s
    late_s, most_s = longest_s - heartbeat_s, max(usual_s, policy.longest_lease_s)
    wanted_s = usual_s
    while ANSWER_SHARE * wanted_s < late_s and wanted_s < most_s:
        wanted_s *= 2
    return min(wanted_s, most_s)


def patience_s(lease_s: float, others_late_s: Collection[float], policy: GatewayPolicy) -> float:
    """Return the silence after which a machine that answers no probe either is given up, in seconds.

    Where others were silent as well and are heard again, the hosts or the gateway are slow, as no cut cable is: it has
    as long as the longest lease, which it may not have been granted yet.

    Args:
        lease_s: the machine's lease.
        others_late_s: seconds since each other machine was heard again after a silence; infinite: it never was.
        policy: the longest lease.
    """
    late = sum(since_s <= LATE_S for since_s in others_late_s)
    if late < max(MIN_LATE, LATE_SHARE * len(others_late_s)):
        return lease_s
    return max(lease_s, policy.longest_lease_s)


def is_alone(others_silent_s: Sequence[float], limit_s: float) -> bool:
    """Return whether no other machine is heard either: then the listener's own network is gone, and it accuses none.

    Args:
        others_silent_s: how long each other machine has been silent.
        limit_s: silence of a machine that counts as heard.
    """
    return bool(others_silent_s) and min(others_silent_s) > limit_s


def why_cut_off(silent_s: float, lease_s: float, asked: Sequence[AskedPeer]) -> str:
    """Return why a machine that has not heard the gateway for ``silent_s`` is cut off; empty: the gateway may be away.

    Another machine's contact shows it when it lasts as long as this machine's silence: a gateway that comes back, or
    takes over, does not reach all machines at once. After a whole lease it does, or it gives this machine up; so a
    machine that is cut off while the gateway is away learns it once the gateway is back.

    Args:
        silent_s: seconds since the gateway last answered this machine, when the others were asked.
        lease_s: this machine's lease.
        asked: other machines that were asked just now; none: no machine could take over, so there is no danger.
    """
    shown_s = min(silent_s, lease_s)
    served = [
        each
        for each in asked
        if each.contact and each.contact.heard_s < shown_s / 2 and each.contact.since_s >= shown_s
    ]
    if served:
        return f"the gateway has not answered for {silent_s:.1f} s, but answers {served[0].name}"
    if asked and not any(each.reached for each in asked):
        return f"neither the gateway nor any of {len(asked)} other machines has answered for {silent_s:.1f} s"
    return ""
