"""Reads the logs of running ranks for lines that report a fault before the rank ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.agent.inspection.follow import Follower
from holdfast.agent.ranks.reactions import Watch
from holdfast.agent.ranks.run import Run
from holdfast.models.agent import EndedPart
from holdfast.models.alert import AlertKind
from holdfast.policies.classify import ended_part, lived_on
from holdfast.policies.classify.patterns import RANK_LOG_FILE, Match, registry

log = logging.getLogger(__name__)
_MOST_CHARS = 256 << 10
"""Of a log that grows by more than this per look, only the end is read."""
_OUTLIVED_S = 60.0
"""Seconds that a rank may step on with what a part of it delivered before its end."""


class RankLogs:
    """Reports each pattern once per rank and run. A replay's logs are left to the caller of the replay."""

    def __init__(self, runs: Mapping[str, Run], watch: Watch, interval_s: float) -> None:
        self._runs = runs
        self._watch = watch
        self._interval_s = interval_s
        self._patterns = registry(RANK_LOG_FILE)
        self._followers: dict[tuple[str, int], Follower] = {}
        self._reported: set[tuple[str, int, str]] = set()
        self._ended_at: dict[tuple[str, int], float] = {}
        """When the log last announced that a part of the rank ended (Unix seconds)."""

    async def run(self) -> None:
        """Run without end."""
        while True:
            try:
                self.look()
            except Exception:  # a log that cannot be read must not end the agent
                log.exception("rank logs: this round failed")
            await asyncio.sleep(self._interval_s)

    def look(self) -> None:
        """Do one round."""
        current = {(run.name, rank): run for run, rank in self._alive()}
        for key in self._followers.keys() - current.keys():
            self._followers.pop(key).close()
            self._ended_at.pop(key, None)
        self._reported = {each for each in self._reported if each[:2] in current}
        for (name, rank), run in current.items():
            for match, count in self._matches(name, rank, run):
                self._watch.alert(run, AlertKind.RANK_LOG, rank, _evidence(match, count))

    def ended_part(self, run: Run, rank: int) -> EndedPart | None:
        """Return the part of a rank that ended about at its last step or since; None: its log names none.

        One that ended long before was not needed: the rank went on without it.
        """
        at = self._ended_at.get((run.name, rank))
        row = run.board.rows[rank] if run.board else None
        if at is None or row is None or at < row.step_at - _OUTLIVED_S:
            return None
        return ended_part.ended_part(run.log_tail(rank))

    def _alive(self) -> Iterator[tuple[Run, int]]:
        for run in self._runs.values():
            if run.start.replay is None:
                yield from ((run, rank) for rank, each in run.processes.items() if not each.gone.done())

    def _matches(self, name: str, rank: int, run: Run) -> list[tuple[Match, int]]:
        key = (name, rank)
        if key not in self._followers:
            self._followers[key] = Follower(run.log(rank), from_start=True)
        text = lived_on.plain("\n".join(self._followers[key].lines())[-_MOST_CHARS:])
        matches = self._patterns.matches(text) if text else []
        if ended_part.begins(text, matches):
            self._ended_at[key] = time.time()
        found: dict[str, tuple[Match, int]] = {}
        for match in matches:
            if lived_on.handled(match.line):
                continue
            first, count = found.get(match.pattern.name, (match, 0))
            found[match.pattern.name] = (first, count + 1)
        fresh = {each: item for each, item in found.items() if (*key, each) not in self._reported}
        self._reported.update((*key, each) for each in fresh)
        return list(fresh.values())


def _evidence(match: Match, count: int) -> dict[str, Any]:
    pattern = match.pattern
    return {
        "pattern": pattern.name,
        "cause": pattern.cause,
        "cascade": pattern.cascade,
        **match.groups,
        "line": match.line,
        "count": count,
    }
