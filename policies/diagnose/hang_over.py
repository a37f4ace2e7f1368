"""Whether a hang is over by the time that it is looked at: the stacks of a training accuse no machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.models.agent import RankState
from holdfast.models.alert import Alert, AlertKind

MOST_WATCHED_S = 60.0
"""Longest watch for the next step of a process that runs again."""


def alert_of(alerts: Iterable[Alert], epoch: int) -> Alert | None:
    """Return the newest report of a hang of ``epoch`` that names the steps done by then; None: there is none.

    Those of people, and of releases before, do not name them: nothing can be compared.
    """
    named = (each for each in alerts if each.kind is AlertKind.HANG and each.epoch == epoch and each.firing)
    return max((each for each in named if _count(each) is not None), key=lambda each: each.at, default=None)


def steps_since(alert: Alert, ranks: Sequence[RankState]) -> int:
    """Return how many steps ``ranks`` have completed since; in a hang none completes any.

    0 also where these are not as many ranks as the report counts, and so not the same.
    """
    if len(ranks) != alert.evidence.get("of_ranks"):
        return 0
    return max(0, sum(rank.steps_done for rank in ranks) - (_count(alert) or 0))


def runs_again(alert: Alert, ranks: Sequence[RankState]) -> bool:
    """Return whether processes were stopped by a signal then, and none of these is now."""
    stopped = frozenset(alert.evidence.get("stopped") or ())
    return bool(stopped) and not any(
        rank.rank in stopped and rank.process_state.startswith("T") for rank in ranks
    )


def watch_s(alert: Alert) -> float:
    """Return for how many seconds what runs again is watched for a step: as long as a step may take."""
    return min(MOST_WATCHED_S, float(alert.evidence.get("window_s") or 0.0))


def _count(alert: Alert) -> int | None:
    found = alert.evidence.get("steps_done")
    return found if isinstance(found, int) else None
