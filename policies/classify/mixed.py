"""Separation of several ranks' tracebacks that one log holds mixed, line by line. Pure."""

from __future__ import annotations

import re

from holdfast.policies.classify.boxed import START
from holdfast.policies.classify.lived_on import plain
from holdfast.policies.classify.patterns import RANK_LOG_FILE, registry

_RANK = re.compile(r"^\[(?:rank|default)\d{1,6}\]:? ?|^\[\d{1,6},\d{1,6}\]<std(?:err|out)>:? ?")
"""A prefix of each line of a rank: by torchrun, torch's own hook, mpirun."""


def separated(log: str) -> str:
    """Return the log with mixed tracebacks one after another; the very log where none are mixed.

    Those of ranks that only lost a peer come first: what a log ends with is its cause.
    """
    if log.count(START) < 2:
        return log
    lines = plain(log).splitlines(keepends=True)
    whose = [found[0] if (found := _RANK.match(line)) else "" for line in lines]
    first = next((at for at, line in enumerate(lines) if whose[at] and START in line), len(lines))
    if not any(_broken(lines, whose, at) for at in range(first, len(lines) - 1)):
        return log
    apart: dict[str, list[str]] = {}
    rank = whose[first]
    for line, prefix in zip(lines[first:], whose[first:], strict=True):
        rank = prefix or rank  # a line without one goes on from the line before
        apart.setdefault(rank, []).append(line)
    ordered = sorted(apart, key=lambda each: not _only_lost_a_peer(apart[each][-1][len(each) :]))
    return "".join([*lines[:first], *(line for each in ordered for line in apart[each])])


def _broken(lines: list[str], whose: list[str], at: int) -> bool:
    """Return whether another rank's line comes between the first line of a traceback, or a frame, and what follows."""
    inside = START in lines[at] or lines[at].startswith("  ", len(whose[at]))
    return inside and bool(whose[at]) and bool(whose[at + 1]) and whose[at] != whose[at + 1]


def _only_lost_a_peer(line: str) -> bool:
    found = registry(RANK_LOG_FILE).match(line)
    return found is not None and found.pattern.cascade
