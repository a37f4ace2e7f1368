"""Replays without evidence: their ranks ended before they played the steps in question."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.models.agent import RankResult
from holdfast.models.alert import IncidentClass

COULD_NOT = "could not be replayed"
_MAY_BE_THE_FAULT = frozenset({"gpu", "numeric", "framework", "crash"})
"""Causes of exceptions that wrong arithmetic, or a machine that computes wrongly, may have."""
_OF_NUMBERS = frozenset({IncidentClass.NAN_LOSS, IncidentClass.SILENT_CORRUPTION})


def reason(results: Sequence[RankResult], incident_class: IncidentClass, raised: Collection[str]) -> str:
    """Return why the failure of a group is no evidence; empty: it is, or the group did not fail.

    A state that does not load at the group's number of ranks shows neither a machine's fault nor the code's. Where
    numbers are looked for, nor does an exception of the script (a port in use, a file that another group moved), or the
    end of a rank before its first step, unless it raised what the job had raised.

    Args:
        results: of the group's ranks.
        incident_class: class of the incident that is replayed for.
        raised: types of the exceptions that the incident's signals carry.
    """
    failed = [result for result in results if not result.ok]
    reasons = [why for result in failed if (why := _why(result, incident_class, raised))]
    return reasons[0] if reasons and len(reasons) == len(failed) else ""


def _why(result: RankResult, incident_class: IncidentClass, raised: Collection[str]) -> str:
    if result.unloadable:
        return result.unloadable
    if incident_class not in _OF_NUMBERS or result.error_type in raised or result.cause in _MAY_BE_THE_FAULT:
        return ""
    if result.began and not result.error_type:
        return ""
    return result.detail or "a rank ended before its first step"
