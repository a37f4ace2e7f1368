"""Signals of rank processes."""

from __future__ import annotations

from holdfast.models.alert_kinds.kind import Kind, SignalScope
from holdfast.models.alert_kinds.meaning import NEVER

RANK_EXIT = Kind(
    "rank_exit",
    SignalScope.RANK,
    "A rank ended by itself with a failure: exit code, signal, traceback, last lines of its log.",
    evidence="exit_code, signal, traceback, error_type, message, user_frame, cascade (only lost its peer), pattern and "
    "cause (name and cause in the registry of log patterns), log_tail, failed_at (when it reported the failure, "
    "Unix seconds on its machine's clock), ended_before (other ranks that had ended with status 0)",
    meaning=NEVER,
    precedence=930,
    unless="by [why the rank ended](#why-a-rank-ended); an exit that only lost its peer never",
)
RANK_LOG = Kind(
    "rank_log",
    SignalScope.RANK,
    "A line in the log of a rank that still runs matches a [pattern](../policies/rank_log.yaml).",
    evidence="pattern, cause, cascade, line, count",
    meaning=NEVER,
    precedence=910,
    every="intervals.rank_log_s",
)
