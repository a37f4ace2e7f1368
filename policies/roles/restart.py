"""When a replica that ended starts again: its pauses, its failure limit and its budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.models.roles import Restart, RestartWhen

HOUR_S = 3600.0


@dataclass(frozen=True)
class ReplicaEnd:
    """One run of a replica that has ended."""

    lasted_s: float
    exit_code: int
    announced: bool = False

    def good(self, rule: Restart) -> bool:
        """Return whether the run shows that the replica can work here."""
        return self.announced or self.exit_code == 0 or self.lasted_s >= rule.good_after_s


@dataclass(frozen=True)
class RestartDecision:
    """Decision about a replica that ended: ``pause_s`` None: it does not start again."""

    pause_s: float | None
    failures: int
    """Bad runs since the last good one."""
    failed: str = ""
    """Why it is given up here; empty with no pause: it is done."""


def after(
    ended: ReplicaEnd, rule: Restart, failures: int, restarts: Sequence[float], now: float
) -> RestartDecision:
    """Return what follows a run.

    Args:
        ended: the run.
        rule: the role's restart rule.
        failures: bad runs in a row before it.
        restarts: times of earlier restarts, seconds.
        now: the present time on the same clock.
    """
    failures = 0 if ended.good(rule) else failures + 1
    done = ended.exit_code == 0 and rule.when is not RestartWhen.ALWAYS
    if done or (rule.when is RestartWhen.NEVER and ended.exit_code == 0):
        return RestartDecision(None, failures)
    if rule.when is RestartWhen.NEVER:
        return RestartDecision(None, failures, "it failed, and is never restarted (restart.when)")
    if failures >= rule.failures:
        return RestartDecision(None, failures, f"{failures} failures in a row (restart.failures)")
    within = sum(1 for at in restarts if now - at < HOUR_S)
    if rule.per_hour and within >= rule.per_hour:
        return RestartDecision(None, failures, f"{within} restarts within an hour (restart.per_hour)")
    return RestartDecision(pause_s(rule, failures), failures)


def pause_s(rule: Restart, failures: int) -> float:
    """Return the pause before the next run after so many bad ones in a row."""
    doubled = rule.pause_s * 2.0 ** min(max(0, failures - 1), 40)
    return min(rule.longest_pause_s, doubled)
