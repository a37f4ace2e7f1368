"""Detection that a rank failed on the saved state from which it was to resume: then no user's code is at fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.policies.classify import last_words

_ANYWHERE = frozenset({"DamagedError"})
_AT_RESTORE = frozenset(
    {
        "CheckpointError",
        "CheckpointException",  # torch.distributed.checkpoint's, around what any rank met
        "UncoveredError",
        "UnpicklingError",
        "AssertionError",
        "AttributeError",
        "IndexError",
        "KeyError",
        "TypeError",
        "ValueError",
    }
)
_OF_TORCH = "loading state_dict"
_NO_ANSWER = ("UnavailableError", "SilentError")
_OF_DEVICES = frozenset({"gpu", "gpu_memory", "nccl"})
"""Causes by which the state could not be brought to a GPU, whatever the error that reports it."""


def reason(report: Mapping[str, Any] | None) -> str:
    """Return why the state could not be loaded, in the rank's words; empty when it ended for another reason.

    A store that does not answer, a peer that is gone, or a GPU that fails or has no memory left is no evidence about
    the state: an older one would lose steps, and meet the same.

    Args:
        report: last error of the rank: ``error_type``, ``message``, ``restoring`` (it was inside ``Session.restore``).
    """
    known = report or {}
    kind, message = str(known.get("error_type") or ""), str(known.get("message") or "")
    if kind in _ANYWHERE:
        return message
    if not known.get("restoring") or any(each in message for each in _NO_ANSWER):
        return ""
    if kind not in _AT_RESTORE and not (kind == "RuntimeError" and _OF_TORCH in message):
        return ""
    found = last_words.match_exception(known)
    if found is not None and (found.pattern.cascade or found.pattern.cause in _OF_DEVICES):
        return ""
    return message if kind == "CheckpointError" else f"{kind}: {message}"
