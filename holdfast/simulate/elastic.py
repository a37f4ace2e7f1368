"""The size of an elastic job: smaller by whole replicas while no standby is there, until machines are back."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any

import simpy

from holdfast.simulate.scenario import Scenario
from holdfast.simulate.supply import Supply

_LOOK_S = 60.0
SMALLEST = 0.5
"""Below this share of its machines a job waits instead."""


class Size:
    """Machines that a job does without. Faults go on to strike as if it had all: slightly too many of them."""

    def __init__(
        self, env: simpy.Environment, scenario: Scenario, supply: Supply, due: Callable[[], None]
    ) -> None:
        """``due`` is called when machines are back and the job may grow."""
        self._env, self._supply, self._due = env, supply, due
        self._machines = scenario.machines
        block, ranks = scenario.parallelism.block(), scenario.ranks_per_machine
        self._replica = math.lcm(block, ranks) // ranks
        self.dropped = 0
        self._back = 0
        """Of these, as many as are there again."""
        self.shrunk = 0
        """How often it was made smaller."""

    @property
    def share(self) -> float:
        """Share of the machines that train."""
        return 1.0 - self.dropped / self._machines

    @property
    def may_grow(self) -> bool:
        """Whether machines are back."""
        return self._back > 0

    def shrink(self, lost: int, away_s: float) -> bool:
        """Do without the replicas of ``lost`` machines, which are replaced after ``away_s``; False: too few are left.

        The other machines of these replicas stand by meanwhile.
        """
        dropped = math.ceil(lost / self._replica) * self._replica
        if self._machines - self.dropped - dropped < SMALLEST * self._machines:
            return False
        self.dropped += dropped
        self.shrunk += 1
        self._supply.standbys += dropped - lost
        self._env.process(self._return(dropped, dropped - lost, away_s))
        return True

    def grow(self) -> None:
        """Take what is back."""
        self.dropped, self._back = self.dropped - self._back, 0

    def _return(self, dropped: int, lent: int, away_s: float) -> Generator[simpy.Event, Any, None]:
        yield self._env.timeout(away_s)
        while self._supply.standbys < lent:  # those that stood by were needed elsewhere in the job
            yield self._env.timeout(_LOOK_S)
        self._supply.standbys -= lent
        self._back += dropped
        self._due()
