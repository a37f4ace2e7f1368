"""Where new machines come from: the four strategies, as simulated processes."""

from __future__ import annotations

from collections.abc import Generator
from random import Random
from typing import Any

import simpy

from holdfast.policies.pool.spare_pool import probability
from holdfast.simulate.scenario import Scenario, Strategy, at_size


class Supply:
    """Standbys, and how long a job waits for machines."""

    def __init__(
        self, env: simpy.Environment, scenario: Scenario, strategy: Strategy, pool: int, random: Random
    ) -> None:
        self._env, self._scenario, self._strategy, self._random = env, scenario, strategy, random
        self._costs = scenario.costs
        self.standbys = pool if strategy is Strategy.POOL else 0
        self.target = self.standbys
        self.asked: list[int] = []
        """Standbys wanted by each swap."""
        self.short = 0
        """Swaps for which the pool was too small."""
        self._rotten = probability(scenario.machine_rate, self._costs.inspect_h / 2)

    def swap(self, n: int) -> tuple[float, float]:
        """Replace ``n`` machines: seconds until they are there, of which waiting for the scheduler."""
        self.asked.append(n)
        size = self._scenario.machines
        requeue = at_size(self._costs.requeue_s, size)
        if self._strategy is Strategy.UNLIMITED:
            return self._costs.swap_s, 0.0
        if self._strategy is Strategy.REQUEUE:
            return 0.0, 0.0  # every start goes through the queue anyway
        # The scheduler's time includes the start of the processes, which is counted apart.
        reschedule = max(0.0, self._costs.reschedule_share * requeue - at_size(self._costs.restart_s, size))
        if self._strategy is Strategy.RESCHEDULE or n > self._claim(n):
            self.short += self._strategy is Strategy.POOL
            return reschedule, reschedule
        return self._costs.swap_s, 0.0

    def start(self) -> float:
        """Return the seconds that every start waits for the queue."""
        if self._strategy is not Strategy.REQUEUE:
            return 0.0
        size = self._scenario.machines
        return max(0.0, at_size(self._costs.requeue_s, size) - at_size(self._costs.restart_s, size))

    def _claim(self, n: int) -> int:
        """Take up to ``n`` fit standbys; each that leaves the pool is replaced in the background."""
        fit = 0
        while fit < n and self.standbys:
            self.standbys -= 1
            fit += self._random.random() >= self._rotten
            self._env.process(self._replenish())
        return fit

    def _replenish(self) -> Generator[simpy.Event, Any, None]:
        yield self._env.timeout(self._scenario.replenish_h * 3600)
        self.standbys += 1
