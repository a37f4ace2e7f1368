"""Faults of the job, in the mix of the scenario, as a Poisson process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import simpy

from holdfast.simulate.scenario import DAY_S, Cause, Scenario

SWITCH = "os_kernel_panic"
"""How the machines of a failed switch look: their agents do not answer."""

LEAVE = "maintenance"
"""A machine that works is to be left."""


@dataclass
class Fault:
    """One fault. ``machines`` are those that show it; they are at fault only with the cause ``machine``."""

    symptom: str
    cause: Cause
    machines: tuple[str, ...]
    urgent: bool = True
    over: bool = False
    brought: bool = False
    """Of a machine that is to be left: a standby was brought up to take its place."""
    person_at: float | None = None
    """When a person who was asked has found its cause; None: no one was asked."""


class Faults:
    """Streams: faults of machines, machines to be left, all others. ``hit`` is called with each."""

    def __init__(
        self,
        env: simpy.Environment,
        scenario: Scenario,
        seed: str,
        hit: Callable[[Fault], None],
        names: Sequence[str],
    ) -> None:
        self._env, self._scenario, self._hit, self._names = env, scenario, hit, names
        self._machine, self._other = Random(f"{seed}:machine"), Random(f"{seed}:other")
        self._leave = Random(f"{seed}:leave")

    def start(self) -> None:
        """Begin."""
        self._env.process(self._machines())
        self._env.process(self._others())
        self._env.process(self._leaves())

    def _machines(self) -> Generator[simpy.Event, Any, None]:
        random, weights = self._machine, self._scenario.machine_weights()
        rate = self._scenario.machine_faults_per_s()
        while rate:
            yield self._env.timeout(random.expovariate(rate))
            (symptom,) = random.choices(list(weights), list(weights.values()))
            slot = random.randrange(self._scenario.machines)
            if random.random() < self._scenario.switch.share and SWITCH in self._scenario.symptoms:
                self._hit(Fault(SWITCH, Cause.MACHINE, self._switch(slot)))
            else:
                self._hit(Fault(symptom, Cause.MACHINE, (self._names[slot],)))

    def _leaves(self) -> Generator[simpy.Event, Any, None]:
        random, scenario = self._leave, self._scenario
        rate = scenario.machines * scenario.leave_rate / DAY_S if LEAVE in scenario.symptoms else 0.0
        while rate:
            yield self._env.timeout(random.expovariate(rate))
            self._hit(Fault(LEAVE, Cause.PLANNED, (self._names[random.randrange(scenario.machines)],)))

    def _switch(self, slot: int) -> tuple[str, ...]:
        size = self._scenario.switch.machines
        first = slot - slot % size
        return tuple(self._names[first : first + size])

    def _others(self) -> Generator[simpy.Event, Any, None]:
        random, weights = self._other, self._scenario.other_weights()
        rate = self._scenario.others_per_s() if weights else 0.0
        while rate:
            yield self._env.timeout(random.expovariate(rate))
            ((symptom, cause),) = random.choices(list(weights), list(weights.values()))
            slot = random.randrange(self._scenario.machines)
            urgent = random.random() < self._scenario.costs.urgent_share
            self._hit(
                Fault(symptom, cause, (self._names[slot],), urgent=urgent or cause is not Cause.PLANNED)
            )
