"""Facts that the classification of alerts is given beside them, and its answers."""

from __future__ import annotations

from holdfast.models.alert import (
    Classification,
)
from holdfast.models.base import Frozen
from holdfast.models.job import Job


class JobContext(Frozen):
    """Facts about the job beside the alerts."""

    job: Job
    now: float
    """Unix seconds."""
    unreachable: frozenset[str] = frozenset()
    """Machines whose agent is gone."""
    doubtful: frozenset[str] = frozenset()
    """Machines that do not answer at the moment: whether they are lost will be known ..."""
    doubt_s: float = 0.0
    """... within so many seconds."""
    ended: tuple[int, ...] = ()
    """Ranks of the present epoch that ended with status 0, while others did not."""
    received_at: float | None = None
    """When the first of the alerts was heard, on the gateway's clock; None: their own times count."""
    listening_since: float = 0.0
    """When the gateway came or took over: reports of earlier events arrive late, and in any order."""
    code_changed_at: float | None = None
    """When the running code version was switched to; None: never since the submission."""
    meanwhile: str = ""
    """Summary of the incident that was worked on until then, for the report; empty: there was none."""


class TooEarly(Frozen):
    """Too early: the root cause of the alerts has not shown itself yet."""

    until_s: float
    """Unix time at which to ask again at the latest."""
    why: str


class NoAction(Frozen):
    """Nothing to act on."""

    reason: str


Decision = Classification | TooEarly | NoAction
