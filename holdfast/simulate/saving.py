"""How far the job came, what of it is saved, and what saving costs."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from holdfast.simulate.scenario import Scenario, Variant


@dataclass(frozen=True)
class Made:
    """Steps made in a stretch of training."""

    steps: int
    seconds: float
    """Wall-clock time that they took, stalls included."""
    stall_s: float = 0.0


class SavedProgress:
    """Counts steps; a checkpoint is due after a fixed number of them since the last start."""

    def __init__(self, scenario: Scenario, variant: Variant) -> None:
        self._step_s = scenario.step_s
        saving = scenario.saving
        every_step = variant.checkpoint_s is None
        self._stall_s = saving.every_step_share * scenario.step_s if every_step else 0.0
        self._write_s = 0.0 if every_step else saving.write_s
        every_s = saving.s3_every_s if variant.checkpoint_s is None else variant.checkpoint_s
        self._every = max(1, round(every_s / scenario.step_s))
        self.position = 0
        """The last step made, in the present history."""
        self.reached = 0
        """The furthest step ever made."""
        self.remote = 0
        """The newest step in S3."""

    @property
    def remotes(self) -> tuple[int, ...]:
        """The checkpoints in S3, newest first; older ones are never needed."""
        return tuple(step for step in (self.remote, self.remote - self._every) if step > 0)

    def train(self, wall_s: float) -> tuple[Made, Made]:
        """Train for ``wall_s``: steps made again, and new ones. What is left is a step that was cut off."""
        made = self._steps_in(wall_s)
        again = min(made, max(0, self.reached - self.position))
        before, self.position = self.position, self.position + made
        self.reached = max(self.reached, self.position)
        if not self._write_s:
            self.remote = self.position // self._every * self._every
        elif saved := self._saved_in(wall_s):
            # A checkpoint that is being written when the job stops is not there.
            self.remote = before + saved * self._every
        first, whole = min(wall_s, self._wall(again)), min(wall_s, self._wall(made))
        new = made - again
        stall = max(0.0, whole - first - new * self._step_s)
        return Made(again, first), Made(new, whole - first, stall)

    def to_boundary(self, wall_s: float) -> float:
        """Return the seconds until the step is over that is under way after ``wall_s`` of training at every step."""
        return -wall_s % (self._step_s + self._stall_s)

    def restore(self, step: int) -> None:
        """Continue after ``step``."""
        self.position = step

    def _steps_in(self, wall_s: float) -> int:
        step = self._step_s + self._stall_s
        if not self._write_s:
            return floor(wall_s / step + 1e-9)
        cycle = self._every * step + self._write_s
        cycles = floor(wall_s / cycle + 1e-9)
        return cycles * self._every + min(self._every, floor((wall_s - cycles * cycle) / step + 1e-9))

    def _saved_in(self, wall_s: float) -> int:
        return floor(wall_s / (self._every * (self._step_s + self._stall_s) + self._write_s) + 1e-9)

    def _wall(self, steps: int) -> float:
        """Time of the first ``steps`` after a start, the checkpoints that fall due with them included."""
        return steps * (self._step_s + self._stall_s) + steps // self._every * self._write_s
