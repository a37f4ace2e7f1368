"""The newest step of each rank that was accepted: a step that is reported twice counts once."""

from __future__ import annotations

from holdfast.agent.ranks.run import Run


class Newest:
    """Holds one step per job and rank, of the run that reported last: a new epoch may begin at an older step."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, int], tuple[str, int]] = {}

    def take(self, run: Run, rank: int, step: int) -> bool:
        """Remember a step; return whether it is new for this run."""
        who = (run.start.job, rank)
        name, newest = self._steps.get(who, (run.name, 0))
        if name == run.name and step <= newest:
            return False
        self._steps[who] = (run.name, step)
        return True
