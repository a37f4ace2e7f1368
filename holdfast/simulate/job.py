"""One life of a job: it trains, faults strike, it is recovered by the policies; as discrete events."""

from __future__ import annotations

from holdfast.models.alert import IncidentClass
from holdfast.policies.accounting.lost_time import LostPhase, account
from holdfast.policies.config.policy import Policy
from holdfast.simulate.faults import LEAVE, Fault, Faults
from holdfast.simulate.life import MOVED, Life
from holdfast.simulate.recovery import Recovery
from holdfast.simulate.scenario import DAY_S, Scenario, Variant
from holdfast.simulate.training import Steps, Training


def live(scenario: Scenario, variant: Variant, policy: Policy, seed: str) -> Life:
    """Simulate one life; the same seed gives the same faults under every variant."""
    return _Life(scenario, variant, policy, seed).life()


class _Life:
    """The loop of one life."""

    def __init__(self, scenario: Scenario, variant: Variant, policy: Policy, seed: str) -> None:
        self.job = Training(scenario, variant, policy, seed)
        self.recovery = Recovery(self.job)
        self.faults = Faults(self.job.env, scenario, seed, self.job.hit, self.job.names)
        self.end = scenario.days * DAY_S

    def life(self) -> Life:
        self.job.env.process(self._run())
        self.faults.start()
        self.job.roles.start()
        self.job.env.run(until=self.end)
        if self.job.wake is not None:
            self.job.book(self.job.began, self.end)
        self.job.found.account = account(self.job.spans, 0.0, self.end)
        self.job.found.roles = self.job.roles.finish()
        self.job.found.steps = self.job.progress.reached
        self.job.found.swaps_short = self.job.supply.short
        return self.job.found

    def _run(self) -> Steps[None]:
        yield from self.job.start()
        while True:
            while self.job.pending and self.job.is_over(self.job.pending[0]):
                self.job.pending.popleft()
            if not self.job.pending and self.job.size.may_grow:
                yield from self._grow()
                continue
            if self.job.pending:
                fault, since = self.job.pending.popleft(), self.job.env.now
            else:
                self.job.began = self.job.env.now
                self.job.wake = self.job.env.event()
                self.job.roles.trained()
                fault = yield self.job.wake
                self.job.wake = None
                if fault is not None and fault.symptom == LEAVE:  # held at a boundary, no step is cut off
                    share = self.job.size.share
                    worked_s = self.job.roles.stretch(self.job.began, self.job.env.now).worked_s
                    left = self.job.progress.to_boundary(worked_s * share)
                    yield self.job.env.timeout(left / share)
                since = self.job.book(self.job.began, self.job.env.now)
            if fault is None:
                yield from self._grow()
            elif fault.symptom == LEAVE:
                yield from self._leave(fault)
            else:
                yield from self.recovery.recover(fault, since)

    def _grow(self) -> Steps[None]:
        self.job.cause = IncidentClass.SCALE_JOB.value
        yield from self.job.spend(LostPhase.PAUSING, self.job.costs.pause_s)
        yield from self.job.spend(LostPhase.SWAPPING, self.job.costs.grow_s)
        self.job.all_new_processes = True
        yield from self.job.resume(None)

    def _leave(self, fault: Fault) -> Steps[None]:
        """Move off a machine that works: what takes long is done while the job trains, as the playbook does it."""
        if not self.job.present(fault):
            return
        (old,) = fault.machines
        if not fault.brought:
            fault.brought = True
            _, away_s = self.job.supply.swap(1)
            if away_s:
                self.job.env.process(self._later(fault, away_s))
                return
        self.job.cause = IncidentClass.PLANNED_MOVE.value
        self.job.found.incidents += 1
        self.job.found.classes[self.job.cause] += 1
        self.job.found.mechanisms[MOVED] += 1
        yield from self.job.spend(LostPhase.PAUSING, self.job.costs.move_s)
        self.job.replace(old)
        policy = self.job.judge.policy.planned_move
        if policy.ahead and policy.ahead_on_gpus:
            self.job.next_epoch()
            return
        yield from self.job.spend(LostPhase.RESTORING, self.job.costs.memory_s)
        yield from self.job.start()

    def _later(self, fault: Fault, seconds: float) -> Steps[None]:
        yield self.job.env.timeout(seconds)
        self.job.hit(fault)
