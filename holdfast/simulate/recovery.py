"""The recovery of a job from a fault, as the playbook of its class does it and as the policies decide."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from holdfast.models.alert import IncidentClass, Rung
from holdfast.policies.accounting.lost_time import LostPhase, Span
from holdfast.policies.detect.standing_out import Accusation
from holdfast.policies.escalate.ladder import PastIncident
from holdfast.simulate import playbooks
from holdfast.simulate.decide import Judgement
from holdfast.simulate.faults import Fault
from holdfast.simulate.life import (
    ACCUSED,
    AGGREGATED,
    HUMAN,
    REAL_TIME,
    REATTEMPT,
    REPLAYED,
    ROLLBACK,
    STOP_TIME,
    UPDATE,
    WAITED,
)
from holdfast.simulate.playbooks import PlaybookStep
from holdfast.simulate.scenario import Cause, Symptom
from holdfast.simulate.training import Steps, Training

HANGS = 100
"""Hangs that are remembered; older ones lie outside of the policy's window."""


@dataclass
class _Course:
    """One run of a playbook."""

    fault: Fault
    symptom: Symptom
    seen: Judgement
    slow: set[str] = field(default_factory=set)
    """Machines that the vote found slow."""
    broken: set[str] = field(default_factory=set)
    """Machines that failed a stop-time check."""
    rungs: list[Rung] = field(default_factory=list)
    did: str = ""
    """The mechanism that answers for it, if the cause is gone."""
    trains: bool = False
    """The job was restarted before its diagnosis, and trains."""


class Recovery:
    """Recoveries of one job."""

    def __init__(self, training: Training) -> None:
        self.job = training
        self.scenario, self.variant, self.costs = training.scenario, training.variant, training.costs
        self.env, self.random, self.judge = training.env, training.random, training.judge
        self.found, self.supply = training.found, training.supply
        self.evicted_at: list[float] = []
        self.stood_out: deque[Accusation] = deque(maxlen=HANGS)
        self.evicted_for_hangs_at: list[float] = []

    def recover(self, fault: Fault, since: float) -> Steps[None]:
        """Run the playbook of the class that the signs of ``fault`` give; it struck at ``since``."""
        symptom = self.scenario.symptoms[fault.symptom]
        machines = self.job.present(fault) or [self.job.names[0]]
        self.job.roles.died(self._silent(fault, symptom))
        seen = self.judge.judge(symptom, {name: self.job.slots[name] for name in machines}, self.env.now)
        self.job.cause = seen.incident_class.value
        self.found.incidents += 1
        self.found.classes[self.job.cause] += 1
        yield from self._notice(symptom, since)
        yield from self.job.spend(LostPhase.DECIDING, self.costs.dispatch_s)
        course = _Course(fault, symptom, seen)
        for step in playbooks.steps(seen.incident_class):
            if not course.trains:
                yield from self._take(step, course)
        if fault.cause is Cause.TRANSIENT:
            fault.over = True
        if self.job.is_over(fault):
            self.found.mechanisms[course.did] += 1
        elif not course.trains:
            self.env.process(self.job.again(fault))
        if not course.trains:
            self._remember(course)

    def _remember(self, course: _Course) -> None:
        self.job.history.append(
            PastIncident(
                incident_class=course.seen.incident_class,
                epoch=self.job.epoch - 1,
                at=self.env.now,
                rungs=tuple(course.rungs),
            )
        )

    def _notice(self, symptom: Symptom, since: float) -> Steps[None]:
        """Spend the time until the first alert: the job stands still, or goes on more slowly."""
        seconds = self.job.vary(symptom.detect_s if self.variant.inspection else symptom.timeout_s)
        if symptom.slowdown and seconds:
            # Steps that are done stay done: the lost part of the speed counts as undetected time.
            worked = seconds * (1 - symptom.slowdown)
            yield self.env.timeout(worked)
            since = self.job.book(since, self.env.now)
            seconds -= worked
        if since < self.env.now:
            self.job.spans.append(Span(since, self.env.now, LostPhase.UNDETECTED, self.job.cause))
        yield from self.job.spend(LostPhase.UNDETECTED, seconds, vary=False)

    def _take(self, step: PlaybookStep, course: _Course) -> Steps[None]:
        """Take one step of a playbook. Steps without a case cost no time and change nothing here."""
        fault, costs = course.fault, self.costs
        match step:
            case PlaybookStep.PAUSE:
                self.job.stopped_at = self.env.now
                yield from self.job.spend(LostPhase.PAUSING, costs.pause_s)
            case PlaybookStep.RESTART_FIRST if self._restarts_first(course):
                yield from self._restart_first(course)
            case PlaybookStep.DUMP_STACKS if self.variant.aggregation:
                yield from self.job.spend(LostPhase.DIAGNOSING, costs.stacks_s)
                if suspects := self._aggregate(fault, course.symptom, slow=False):
                    course.seen = self._weigh(suspects, course.seen)
            case PlaybookStep.VOTE_SLOW if self.variant.aggregation:  # while it trains
                course.slow = self._aggregate(fault, course.symptom, slow=True)
            case PlaybookStep.AWAIT_HEALTHY if course.seen.incident_class is IncidentClass.EXTERNAL_SERVICE:
                yield from self.job.spend(LostPhase.WAITING, costs.service_s)
            case PlaybookStep.DIAGNOSE if self._is_searched(course):
                yield from self.job.spend(LostPhase.DIAGNOSING, costs.diagnose_s)
                course.broken = self._checked(course)
            case PlaybookStep.ESCALATE:
                course.did = yield from self._answer(course)
            case PlaybookStep.APPLY_UPDATE:
                self.job.change_code(+1)
                fault.over = True
                course.did = UPDATE
            case PlaybookStep.EVICT if not course.did:
                accused = {*course.seen.sure, *self._silent(fault, course.symptom)}
                course.did = yield from self._evict(accused, fault, REAL_TIME)
            case PlaybookStep.RESUME:
                bound = self.job.progress.position - 1 if course.symptom.corrupts else None
                yield from self.job.resume(bound, self.judge.keeps_s(course.seen.incident_class))

    def _is_searched(self, course: _Course) -> bool:
        return bool(self.judge.ladder(course.seen.incident_class).tiers)

    def _checked(self, course: _Course) -> set[str]:
        """Return the machines that stop-time checks find."""
        fault = course.fault
        broken = self.job.present(fault) if fault.cause is Cause.MACHINE else []
        return set(broken) if broken and self.random.random() < course.symptom.found_share else set()

    def _restarts_first(self, course: _Course) -> bool:
        fault, seen, history = course.fault, course.seen, tuple(self.job.history)
        if not self.variant.keep_processes:
            return False
        silent = self._silent(fault, course.symptom)
        return self.judge.restarts_first(seen, self._rung(fault, seen), self.judge.fruitless(history), silent)

    def _restart_first(self, course: _Course) -> Steps[None]:
        """Restart, and diagnose beside the training; it is held and stopped again for a machine that is found."""
        fault, course.did = course.fault, REATTEMPT
        yield from self.job.resume(None, self.judge.keeps_s(course.seen.incident_class))
        course.rungs.append(Rung.RETRY)
        course.trains = True
        self._remember(course)
        if fault.cause is not Cause.TRANSIENT:
            self.env.process(self.job.again(fault))
        self.job.began, self.job.wake = self.env.now, self.env.event()
        found = yield self.job.wake | self.env.timeout(self.job.vary(self.costs.diagnose_s))
        struck, self.job.wake = self.job.wake in found, None
        self.job.book(self.job.began, self.env.now)
        if struck:  # the epoch failed, too (or machines are back): the search is over
            if (again := found[next(iter(found))]) is not None:
                self.job.pending.appendleft(again)
            return
        if broken := self._checked(course):
            self.job.stopped_at = self.env.now
            yield from self.job.spend(LostPhase.PAUSING, self.costs.pause_s)
            course.did = yield from self._evict(broken, fault, STOP_TIME)
            yield from self.job.resume(None, self.judge.keeps_s(course.seen.incident_class))

    def _answer(self, course: _Course) -> Steps[str]:
        """Evict what the diagnosis named, else take a rung of the ladder; return what it did."""
        if course.fault.person_at is not None and self.env.now >= course.fault.person_at:
            return (yield from self._by_hand(course.fault))
        if course.slow:
            return (yield from self._evict(course.slow, course.fault, AGGREGATED))
        if course.broken:
            return (yield from self._evict(course.broken, course.fault, STOP_TIME))
        return (yield from self._escalate(course.fault, course.seen, course.rungs))

    def _escalate(self, fault: Fault, seen: Judgement, rungs: list[Rung]) -> Steps[str]:
        """Take one rung of the ladder, as the policy decides."""
        rung = self._rung(fault, seen)
        rungs.append(rung)
        match rung:
            case Rung.RETRY:
                return REATTEMPT
            case Rung.ROLLBACK:
                return (yield from self._roll_back(fault))
            case Rung.EVICT:
                if seen.again:
                    self.evicted_for_hangs_at += [self.env.now] * len(seen.accused)
                how = AGGREGATED if seen.again else ACCUSED
                return (yield from self._evict(set(seen.accused), fault, how))
            case Rung.REPLAY:
                return (yield from self._replay(fault))
        return (yield from self._person(fault))

    def _rung(self, fault: Fault, seen: Judgement) -> Rung:
        compares = IncidentClass.NAN_LOSS, IncidentClass.SILENT_CORRUPTION
        changed = self.job.code_changed_at
        return self.judge.rung(
            seen,
            tuple(self.job.history),
            can_rollback=self.job.versions > 1,
            code_changed_s_ago=None if changed is None else self.env.now - changed,
            common_cause=fault.cause is Cause.CODE and seen.incident_class in compares,
        )

    def _weigh(self, suspects: set[str], seen: Judgement) -> Judgement:
        """Judge the machines that stand out in a hang: retried in place first, evicted when they stand out again."""
        now = Accusation(at=self.env.now, machines=tuple(sorted(suspects)))
        found = self.judge.stands_out(seen, now, tuple(self.stood_out), self.evicted_for_hangs_at)
        self.stood_out.append(now)
        return found

    def _roll_back(self, fault: Fault) -> Steps[str]:
        yield from self.job.spend(LostPhase.SWAPPING, self.costs.rollback_s)
        self.job.change_code(-1)
        if fault.cause is Cause.CODE and self.random.random() < self.costs.newest_share:
            fault.over = True
        return ROLLBACK

    def _replay(self, fault: Fault) -> Steps[str]:
        broken = (
            [self.job.slots[name] for name in self.job.present(fault)] if fault.cause is Cause.MACHINE else []
        )
        share = 0.0 if fault.cause is Cause.TRANSIENT else self.costs.reproduced_share
        found = self.judge.replay(broken, lambda: self.random.random() < share)
        for _ in range(found.rounds):
            yield from self.job.spend(LostPhase.DIAGNOSING, self.costs.replay_s)
        if found.blames_code:
            able = self.job.versions > 1 and self.variant.rollback
            return (yield from (self._roll_back(fault) if able else self._person(fault)))
        named = {self.job.names[slot] for slot in found.suspects}
        return (yield from self._evict(named, fault, REPLAYED)) if named else REATTEMPT

    def _person(self, fault: Fault) -> Steps[str]:
        """Ask a person, and wait: for that person, or for the time at which the policy has the job started again."""
        if fault.person_at is None:
            fault.person_at = self.env.now + self.random.expovariate(1 / self.costs.human_s)
        left = max(0.0, fault.person_at - self.env.now)
        # Where a machine is gone, no rank can run on it, and the job stands.
        if self.variant.again and self.job.cause != IncidentClass.MACHINE_FAULT.value:
            self.job.limits += 1
            if (pause := self.judge.pause_s(self.job.limits)) < left:
                yield from self.job.spend(LostPhase.WAITING, pause, vary=False)
                return WAITED
        yield from self.job.spend(LostPhase.WAITING, left, vary=False)
        return (yield from self._by_hand(fault))

    def _by_hand(self, fault: Fault) -> Steps[str]:
        """Let the person who found the cause remove it: broken machines go, and the code is fixed."""
        fault.over = True
        self.job.all_new_processes |= fault.cause is Cause.CODE
        broken = {name for name in self.job.present(fault) if fault.cause is Cause.MACHINE}
        if broken:
            yield from self._swap(broken)
        return HUMAN

    def _evict(self, machines: set[str], fault: Fault, mechanism: str) -> Steps[str]:
        machines = {name for name in machines if name in self.job.slots}
        fleet = self.scenario.machines + self.supply.standbys
        recent = self.evicted_at[-fleet:]
        if not machines or not self.judge.may_evict(recent, len(machines), fleet, self.env.now):
            return (yield from self._person(fault))
        yield from self._swap(machines)
        return mechanism

    def _swap(self, machines: set[str]) -> Steps[None]:
        self.evicted_at += [self.env.now] * len(machines)
        self.found.evictions += len(machines)
        yield from self.job.spend(LostPhase.SWAPPING, self.costs.evict_s)
        seconds, waiting = self.supply.swap(len(machines))
        if waiting and self.variant.elastic and self.job.size.shrink(len(machines), waiting):
            seconds, waiting = self.costs.shrink_s, 0.0
            self.job.all_new_processes = True
        yield from self.job.spend(LostPhase.WAITING if waiting else LostPhase.SWAPPING, seconds)
        for name in sorted(machines):
            self.job.lost.add(self.job.replace(name))

    def _silent(self, fault: Fault, symptom: Symptom) -> list[str]:
        """Return the machines that do not answer when the job is stopped."""
        return (
            self.job.present(fault)
            if any(sign.kind.value == "machine_lost" for sign in symptom.signs)
            else []
        )

    def _aggregate(self, fault: Fault, symptom: Symptom, *, slow: bool) -> set[str]:
        broken = self.job.present(fault)
        if fault.cause is not Cause.MACHINE or not broken or not symptom.stacks:
            return set()
        (shows,) = self.random.choices(list(symptom.stacks), list(symptom.stacks.values()))
        rounds = self.judge.policy.diagnose.slow_rounds if slow else 1
        return {
            self.job.names[slot]
            for slot in self.judge.aggregate(self.job.slots[broken[0]], shows, rounds=rounds)
        }
