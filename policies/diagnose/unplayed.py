"""Replays that tell nothing: their ranks ended before they played what is looked for."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.models.agent import RankResult
from holdfast.models.alert import IncidentClass

COULD_NOT = "could not be replayed"
_OF_NUMBERS = frozenset({IncidentClass.NAN_LOSS, IncidentClass.SILENT_CORRUPTION})


def reason(results: Sequence[RankResult], incident_class: IncidentClass, raised: Collection[str]) -> str:
    """Return why the failure of a group is no evidence; empty: it is, or the group did not fail.

    A state that does not load at the group's number of ranks shows neither a machine's fault nor the code's. Where
    numbers are looked for, nor does a rank that ended before its first step (a port in use, a missing file), unless
    it raised what the job had raised.

    Args:
        results: of the group's ranks.
        incident_class: class of the incident that is replayed for.
        raised: types of the exceptions that the incident's signals carry.
    """
    failed = [result for result in results if not result.ok]
    told = [why for result in failed if (why := _why(result, incident_class, raised))]
    return told[0] if told and len(told) == len(failed) else ""


def _why(result: RankResult, incident_class: IncidentClass, raised: Collection[str]) -> str:
    if result.unloadable:
        return result.unloadable
    if result.began or incident_class not in _OF_NUMBERS:
        return ""
    kind = result.detail.partition(":")[0]
    return "" if kind in raised else result.detail or "a rank ended before its first step"
