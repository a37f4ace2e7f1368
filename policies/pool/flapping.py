"""Machines that flap: their agent restarts, or their link goes down and up, again and again.

Each event alone is no fault (an upgrade, a cable that was touched). So many within a window are a fault of the
machine, even if everything works just now. Ranks that die so are counted by
:mod:`holdfast.policies.pool.rank_deaths`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from holdfast.models.alert import Alert, AlertKind
from holdfast.policies.config.ladders import FlapPolicy
from holdfast.policies.config.thresholds import NetworkLimits

RESTARTED = "agent_restarted"
"""The check (of a host fault) under which the ledger records the restart of an agent."""
STANDBY_CHECKS = "standby_checks"
"""The check under which the ledger records results of a standby's checks: firing when one failed."""
REMEMBERED_S = 86_400.0
"""Seconds for which a standby that flapped is remembered, where no checks clear it before."""
_LINKS = frozenset(kind for kind in AlertKind if kind.row.flaps)


def counts(alert: Alert) -> bool:
    """Return whether it reports something that went away and came back, or may."""
    check = alert.evidence.get("check")
    return alert.firing and (
        alert.kind in _LINKS or (alert.kind is AlertKind.HOST_FAULT and check in {RESTARTED, *_LINKS})
    )


def of_checks(alert: Alert) -> bool:
    """Return whether it reports the checks of a standby."""
    return alert.kind is AlertKind.HOST_FAULT and alert.evidence.get("check") == STANDBY_CHECKS


def restarted(alert: Alert) -> bool:
    """Return whether it reports the restart of an agent, which is recorded once for each."""
    return alert.kind is AlertKind.HOST_FAULT and alert.evidence.get("check") == RESTARTED


def why(times: Iterable[float], now: float, policy: FlapPolicy, restarts: Iterable[float] = ()) -> str:
    """Return why a machine flaps; empty: it does not.

    Args:
        times: when such events were reported of it (Unix seconds), in any order; a lasting one is reported again.
        now: Unix seconds.
        policy: how often, within which window, and what counts as one event.
        restarts: when its agent restarted.
    """
    since = now - policy.window_s
    flaps = len(_events((at for at in times if since < at), (at for at in restarts if since < at), policy))
    if flaps < policy.count:
        return ""
    return f"its agent or link came and went {flaps} times within {policy.window_s / 60:g} min"


def own(
    times: Iterable[float],
    elsewhere: Mapping[str, Sequence[float]],
    domains: Iterable[Collection[str]],
    limits: NetworkLimits,
) -> list[float]:
    """Return the times that speak against the machine itself: what it shares with others did not go away with it.

    Args:
        times: when something of it went away (Unix seconds).
        elsewhere: the same of other machines, by name.
        domains: machines that share something with it, itself among them: a switch, a rack, its job. One that loses so
            large a part of its machines at once is at fault, and none of them.
        limits: how large a part, and within how long.
    """
    shared = [(members, _least(members, limits)) for members in domains]

    def hit(members: Collection[str], at: float) -> int:
        near = (name for name in members if _near(elsewhere.get(name, ()), at, limits.switch_window_s))
        return 1 + sum(1 for _ in near)

    return [at for at in times if not any(hit(members, at) >= least for members, least in shared)]


def _least(members: Collection[str], limits: NetworkLimits) -> int:
    return max(2, limits.switch_machines, math.ceil(limits.switch_share * len(members)))


def _near(times: Iterable[float], at: float, window_s: float) -> bool:
    return any(abs(other - at) <= window_s for other in times)


def kept_out(
    times: Iterable[float],
    passed: Iterable[float],
    failed: Iterable[float],
    policy: FlapPolicy,
    restarts: Iterable[float] = (),
) -> str:
    """Return why a standby is given to no job yet; empty: it may be.

    One that flapped comes back when its checks have passed for a while, not because time went by.

    Args:
        times: when it flapped, as far as that is remembered (Unix seconds), in any order.
        passed: when all checks of it passed.
        failed: when one did not.
        policy: how often is flapping, and for how long checks must pass.
        restarts: when its agent restarted.
    """
    flaps = _events(times, restarts, policy)
    ends = zip(flaps, flaps[policy.count - 1 :], strict=False)
    if not any(last - first < policy.window_s for first, last in ends):
        return ""
    since = max([flaps[-1], *failed])
    good = [at for at in passed if at > since]
    if good and max(good) - min(good) >= policy.checks_pass_s:
        return ""
    seen = f"checks passed for {max(good) - min(good):.0f} s since" if good else "no checks passed since"
    return f"it flapped, and {seen} (required: {policy.checks_pass_s:g} s)"


def _events(times: Iterable[float], restarts: Iterable[float], policy: FlapPolicy) -> list[float]:
    """Return the events in order, of which a reboot and what it does to links are one."""
    return since_counted([*apart(times, policy.apart_s), *restarts], policy.apart_s)


def since_counted(times: Iterable[float], apart_s: float) -> list[float]:
    """Return the times in order, without those that follow the last one that counts within ``apart_s``.

    What happens all the time counts, however fast: an agent that restarts, a rank that dies.
    """
    found: list[float] = []
    for at in sorted(times):
        if not found or at - found[-1] > apart_s:
            found.append(at)
    return found


def apart(times: Iterable[float], apart_s: float) -> list[float]:
    """Return the times in order, without those that follow the one before within ``apart_s``, as one fault."""
    listed = sorted(times)
    before = [float("-inf"), *listed]
    return [at for last, at in zip(before, listed, strict=False) if at - last > apart_s]
