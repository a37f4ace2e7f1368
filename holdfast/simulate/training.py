"""A job that trains: its machines, saved steps and spans of time, and how it stops and starts again.

:mod:`holdfast.simulate.recovery` is what happens between the two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from math import exp
from random import Random
from typing import Any, TypeVar

import simpy

from holdfast.models.alert import IncidentClass
from holdfast.models.checkpoint import Tier
from holdfast.policies.accounting.lost_time import LostPhase, Span, account
from holdfast.policies.config.policy import Policy
from holdfast.policies.escalate.ladder import PastIncident
from holdfast.simulate.decide import Judge, pool_size
from holdfast.simulate.elastic import Size
from holdfast.simulate.faults import LEAVE, SWITCH, Fault
from holdfast.simulate.life import MERGED, Life
from holdfast.simulate.role_life import RolesLife
from holdfast.simulate.saving import SavedProgress
from holdfast.simulate.scenario import Cause, Scenario, Strategy, Variant, at_size
from holdfast.simulate.standstill import Stretch
from holdfast.simulate.supply import Supply

T = TypeVar("T")
Steps = Generator[simpy.Event, Any, T]

HISTORY = 20
"""Past incidents that the ladder is given; older ones lie behind progress."""


class Training:
    """A job under one variant."""

    def __init__(self, scenario: Scenario, variant: Variant, policy: Policy, seed: str) -> None:
        self.scenario, self.variant, self.costs = scenario, variant, scenario.costs
        self.env = simpy.Environment()
        self.random = Random(f"{seed}:recovery")
        self.judge = Judge(scenario, variant, policy)
        size = pool_size(scenario, variant, policy)
        self.supply = Supply(self.env, scenario, variant.strategy, size, Random(f"{seed}:supply"))
        self.progress = SavedProgress(scenario, variant)
        self.size = Size(self.env, scenario, self.supply, self.machines_are_back)
        self.found = Life(account((), 0.0, 0.0))
        self.began = 0.0
        self.spans: list[Span] = []
        self.pending: deque[Fault] = deque()
        self.wake: simpy.Event | None = None
        """Waited for while the job trains."""
        self.names = list(self.judge.machines)
        self.slots = {name: slot for slot, name in enumerate(self.names)}
        self.next_name = len(self.names)
        self.lost: set[int] = set()
        self.history: deque[PastIncident] = deque(maxlen=HISTORY)
        self.cause = ""
        self.versions = 2
        self.code_changed_at: float | None = None
        self.update_waits = False
        self.stopped_at = 0.0
        """When the ranks of the newest epoch were stopped."""
        self.all_new_processes = True
        """Whether all processes are started again with the next epoch, whatever the policy keeps."""
        self.limits = 0
        """Waits for a person since the last new step."""
        self.epoch = 1
        self.roles = RolesLife(self.env, scenario.roles if variant.roles else {}, seed, self.names)

    def machines_are_back(self) -> None:
        """Let the job grow at its next step boundary, or with the restart that is under way."""
        if self.wake is not None and not self.wake.triggered:
            self.wake.succeed(None)

    def hit(self, fault: Fault) -> None:
        """Apply a fault: at once when the job trains, else as soon as it does again."""
        if fault.symptom == LEAVE and (not self.variant.moves or self.variant.checkpoint_s is not None):
            self.hit(Fault(SWITCH, Cause.MACHINE, fault.machines))  # it goes without a word
        elif fault.cause is Cause.PLANNED and not fault.urgent:
            self.update_waits = True
            self.env.process(self._merge(fault))
        elif self.wake is not None and not self.wake.triggered:
            self.wake.succeed(fault)
        else:
            self.pending.append(fault)

    def _merge(self, fault: Fault) -> Steps[None]:
        """Let a change that can wait be applied with the next restart, or restart for it after the longest wait."""
        yield self.env.timeout(self.costs.merge_h * 3600)
        if self.update_waits:
            self.update_waits = False
            self.hit(Fault(fault.symptom, fault.cause, fault.machines, urgent=True))

    def is_over(self, fault: Fault) -> bool:
        """Return whether its cause is gone."""
        return fault.over or (fault.cause is Cause.MACHINE and not self.present(fault))

    def present(self, fault: Fault) -> list[str]:
        """Return the machines of the fault that the job still uses."""
        return [name for name in fault.machines if name in self.slots]

    def book(self, began: float, now: float) -> float:
        """Account for a stretch of training; returns when its last step ended."""
        share, stretch = self.size.share, self.roles.stretch(began, now)
        again, new = self.progress.train(
            stretch.worked_s * share
        )  # the batch stays the same: steps are longer
        turn = stretch.at(again.seconds / share)
        done = min(now, stretch.at((again.seconds + new.seconds) / share))
        self._book_stands(stretch)
        if again.seconds:
            self.spans.append(Span(began, turn, LostPhase.RECOMPUTING, self.cause))
        if new.steps:
            self.limits = 0
        if new.seconds:
            cause = "" if share == 1.0 else IncidentClass.MACHINE_FAULT.value
            for begin, end in stretch.moving(turn, done):
                stall_s = new.stall_s * (end - begin) / new.seconds
                self.spans.append(Span(begin, end, None, cause, (0.0,), stall_s, share))
            if self.history:
                last = self.history[-1]
                self.history[-1] = last.model_copy(
                    update={"progressed_steps": last.progressed_steps + new.steps}
                )
        return done

    def _book_stands(self, stretch: Stretch) -> None:
        """Account for the time in which the trainer stood for its roles."""
        self.roles.stood(stretch)
        for each in stretch.stands:
            self.spans.append(Span(each.begin, each.end, LostPhase.WAITING, f"role {each.role}", (1.0,)))

    def change_code(self, versions: int) -> None:
        """Go on with a newer version, or with an older one."""
        self.versions += versions
        self.all_new_processes = True
        self.code_changed_at = self.env.now

    def replace(self, name: str) -> int:
        """Give a machine's slot to a new one; return the slot."""
        slot = self.slots.pop(name)
        self.roles.left(name)
        self.names[slot] = new = f"m{self.next_name}"
        self.slots[new] = slot
        self.next_name += 1
        return slot

    def resume(self, bound: int | None, keep_s: float = 0.0) -> Steps[None]:
        """Start the next epoch; processes of ranks that are kept for ``keep_s`` seconds go on in it."""
        if self.size.may_grow:
            self.size.grow()
            self.all_new_processes = True
        queue = self.supply.start()
        if queue:
            yield from self.spend(LostPhase.WAITING, queue)
        memory = self.variant.checkpoint_s is None and self.variant.strategy is not Strategy.REQUEUE
        plan = self.judge.restore(
            self.lost, self.progress.position, self.progress.remotes, bound, memory=memory
        )
        self.found.tiers[plan.tier.value if plan.tier else "scratch"] += 1
        if plan.tier:
            cost = self.costs.memory_s if plan.tier is Tier.MEMORY else self.costs.s3_s
            yield from self.spend(LostPhase.RESTORING, cost)
        self.progress.restore(plan.step)
        self.lost.clear()
        in_time = self.env.now - self.stopped_at < keep_s
        yield from self.start(kept=in_time and plan.tier is Tier.MEMORY and not self.all_new_processes)

    def start(self, *, kept: bool = False) -> Steps[None]:
        """Start the ranks; those that are ``kept`` go on in their processes."""
        if self.update_waits:
            self.update_waits = False
            self.change_code(+1)
            self.found.mechanisms[MERGED] += 1
            kept = False
        self.all_new_processes = False
        self.found.in_process += kept
        self.next_epoch()
        table = self.costs.kept_s if kept else self.costs.restart_s
        yield from self.spend(LostPhase.RESTARTING, at_size(table, self.scenario.machines))

    def next_epoch(self) -> None:
        """Begin an epoch on the present machines."""
        self.epoch += 1
        self.found.restarts += self.epoch > 2
        self.judge.epoch(self.epoch, tuple(self.names))
        self.roles.epoch(self.epoch)

    def again(self, fault: Fault) -> Steps[None]:
        """Let a fault that was not removed come back."""
        yield self.env.timeout(self.random.expovariate(1 / self.costs.again_s[fault.cause]))
        if not self.is_over(fault):
            self.hit(fault)

    def spend(self, phase: LostPhase, seconds: float, *, vary: bool = True) -> Steps[None]:
        """Let time pass that is lost to ``phase``."""
        seconds = self.vary(seconds) if vary else seconds
        if seconds > 0:
            self.spans.append(Span(self.env.now, self.env.now + seconds, phase, self.cause))
            yield self.env.timeout(seconds)

    def vary(self, seconds: float) -> float:
        """Return a duration around ``seconds``, which stays the mean."""
        spread = self.costs.spread
        return (
            seconds * exp(self.random.gauss(-spread * spread / 2, spread)) if spread and seconds else seconds
        )
