"""Outcomes of the calls of ``checkpoint``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counts:
    """Number of calls by outcome."""

    saved: int = 0
    """Complete in shared memory."""
    skipped: int = 0
    """Left out, since the save before was not complete and copied to the peer yet, or a plan is to be made."""
    torn: int = 0
    """Given up, since a tensor was changed in place during the copy."""
    failed: int = 0
    """Not saved, or not by all ranks, because of an error; it is in the log and was reported to the agent."""
    unstepped: int = 0
    """Calls without a :meth:`~holdfast.session.Session.step` before them: nothing new to save."""
    common: int = 0
    """Saves that all ranks are known to have."""
    waited: int = 0
    """Calls that waited for other ranks' votes, before a new plan."""
