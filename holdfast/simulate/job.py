"""One life of a job: it trains, faults strike, it is recovered by the policies; as discrete events."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator
from dataclasses import dataclass, field
from math import exp
from random import Random
from typing import Any, TypeVar

import simpy

from holdfast.models.alert import IncidentClass, Rung
from holdfast.models.checkpoint import Tier
from holdfast.policies.accounting.lost_time import Account, LostPhase, Span, account
from holdfast.policies.config.policy import Policy
from holdfast.policies.detect.standing_out import Accusation
from holdfast.policies.escalate.ladder import PastIncident
from holdfast.simulate import playbooks
from holdfast.simulate.decide import Judge, Judgement, pool_size
from holdfast.simulate.elastic import Size
from holdfast.simulate.faults import LEAVE, SWITCH, Fault, Faults
from holdfast.simulate.playbooks import PlaybookStep
from holdfast.simulate.role_life import RolesLife
from holdfast.simulate.saving import SavedProgress
from holdfast.simulate.scenario import DAY_S, Cause, Scenario, Strategy, Symptom, Variant, at_size
from holdfast.simulate.simulated_replica import RoleLife
from holdfast.simulate.standing import Stretch
from holdfast.simulate.supply import Supply

T = TypeVar("T")
Steps = Generator[simpy.Event, Any, T]

HISTORY = 20
"""Past incidents that the ladder is given; older ones lie behind progress."""

HANGS = 100
"""Hangs that are remembered; older ones lie outside of the policy's window."""

REAL_TIME = "eviction on a real-time check"
STOP_TIME = "eviction by stop-time checks"
AGGREGATED = "over-eviction by aggregation"
REPLAYED = "eviction by dual-phase replay"
ACCUSED = "eviction of the accused"
REATTEMPT = "reattempt"
ROLLBACK = "rollback"
UPDATE = "code update"
MERGED = "code update merged into a restart"
HUMAN = "a person"
WAITED = "started again after a wait"
MOVED = "planned move"


@dataclass
class Life:
    """The outcome of one job. Seconds."""

    account: Account
    incidents: int = 0
    evictions: int = 0
    restarts: int = 0
    in_process: int = 0
    """Of these, those in which the ranks that had not died kept their processes."""
    steps: int = 0
    swaps_short: int = 0
    """Swaps for which the pool was too small."""
    mechanisms: Counter[str] = field(default_factory=Counter)
    """Mechanisms that ended the incidents."""
    classes: Counter[str] = field(default_factory=Counter)
    tiers: Counter[str] = field(default_factory=Counter)
    """Where states were restored from."""
    roles: dict[str, RoleLife] = field(default_factory=dict)


def live(scenario: Scenario, variant: Variant, policy: Policy, seed: str) -> Life:
    """Simulate one life; the same seed gives the same faults under every variant."""
    return _Job(scenario, variant, policy, seed).life()


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


class _Job:
    def __init__(self, scenario: Scenario, variant: Variant, policy: Policy, seed: str) -> None:
        self.scenario, self.variant, self.costs = scenario, variant, scenario.costs
        self.env = simpy.Environment()
        self.random = Random(f"{seed}:recovery")
        self.judge = Judge(scenario, variant, policy)
        size = pool_size(scenario, variant, policy)
        self.supply = Supply(self.env, scenario, variant.strategy, size, Random(f"{seed}:supply"))
        self.progress = SavedProgress(scenario, variant)
        self.size = Size(self.env, scenario, self.supply, self._machines_are_back)
        self.end = scenario.days * DAY_S
        self.found = Life(account((), 0.0, 0.0))
        self.began = 0.0
        self.spans: list[Span] = []
        self.pending: deque[Fault] = deque()
        self.wake: simpy.Event | None = None
        """Waited for while the job trains."""
        self.names = list(self.judge.machines)
        self.slots = {name: slot for slot, name in enumerate(self.names)}
        self.next_name = len(self.names)
        self.evicted_at: list[float] = []
        self.stood_out: deque[Accusation] = deque(maxlen=HANGS)
        self.evicted_for_hangs_at: list[float] = []
        self.lost: set[int] = set()
        self.history: deque[PastIncident] = deque(maxlen=HISTORY)
        self.cause = ""
        self.versions = 2
        self.code_changed_at: float | None = None
        self.update_waits = False
        self.stopped_at = 0.0
        """When the ranks of the newest epoch were stopped."""
        self.all_anew = True
        """Whether all processes are started again with the next epoch, whatever the policy keeps."""
        self.limits = 0
        """Waits for a person since the last new step."""
        self.epoch = 1
        self.faults = Faults(self.env, scenario, seed, self._hit, self.names)
        self.roles = RolesLife(self.env, scenario.roles if variant.roles else {}, seed, self.names)

    def life(self) -> Life:
        self.env.process(self._run())
        self.faults.start()
        self.roles.start()
        self.env.run(until=self.end)
        if self.wake is not None:
            self._book(self.began, self.end)
        self.found.account = account(self.spans, 0.0, self.end)
        self.found.roles = self.roles.finish()
        self.found.steps = self.progress.reached
        self.found.swaps_short = self.supply.short
        return self.found

    # Training

    def _run(self) -> Steps[None]:
        yield from self._start()
        while True:
            while self.pending and self._is_over(self.pending[0]):
                self.pending.popleft()
            if not self.pending and self.size.may_grow:
                yield from self._grow()
                continue
            if self.pending:
                fault, since = self.pending.popleft(), self.env.now
            else:
                self.began = self.env.now
                self.wake = self.env.event()
                self.roles.trained()
                fault = yield self.wake
                self.wake = None
                if fault is not None and fault.symptom == LEAVE:  # held at a boundary, no step is cut off
                    share = self.size.share
                    worked_s = self.roles.stretch(self.began, self.env.now).worked_s
                    left = self.progress.to_boundary(worked_s * share)
                    yield self.env.timeout(left / share)
                since = self._book(self.began, self.env.now)
            if fault is None:
                yield from self._grow()
            elif fault.symptom == LEAVE:
                yield from self._leave(fault)
            else:
                yield from self._recover(fault, since)

    def _machines_are_back(self) -> None:
        """Let the job grow at its next step boundary, or with the restart that is under way."""
        if self.wake is not None and not self.wake.triggered:
            self.wake.succeed(None)

    def _grow(self) -> Steps[None]:
        self.cause = IncidentClass.SCALE_JOB.value
        yield from self._spend(LostPhase.PAUSING, self.costs.pause_s)
        yield from self._spend(LostPhase.SWAPPING, self.costs.grow_s)
        self.all_anew = True
        yield from self._resume(None)

    def _leave(self, fault: Fault) -> Steps[None]:
        """Move off a machine that works: what takes long is done while the job trains, as the playbook does it."""
        if not self._present(fault):
            return
        (old,) = fault.machines
        if not fault.brought:
            fault.brought = True
            _, away_s = self.supply.swap(1)
            if away_s:
                self.env.process(self._later(fault, away_s))
                return
        self.cause = IncidentClass.PLANNED_MOVE.value
        self.found.incidents += 1
        self.found.classes[self.cause] += 1
        self.found.mechanisms[MOVED] += 1
        yield from self._spend(LostPhase.PAUSING, self.costs.move_s)
        self._replace(old)
        policy = self.judge.policy.planned_move
        if policy.ahead and policy.ahead_on_gpus:
            self._next_epoch()
            return
        yield from self._spend(LostPhase.RESTORING, self.costs.memory_s)
        yield from self._start()

    def _later(self, fault: Fault, seconds: float) -> Steps[None]:
        yield self.env.timeout(seconds)
        self._hit(fault)

    def _hit(self, fault: Fault) -> None:
        """Apply a fault: at once when the job trains, else as soon as it does again."""
        if fault.symptom == LEAVE and (not self.variant.moves or self.variant.checkpoint_s is not None):
            self._hit(Fault(SWITCH, Cause.MACHINE, fault.machines))  # it goes without a word
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
            self._hit(Fault(fault.symptom, fault.cause, fault.machines, urgent=True))

    def _is_over(self, fault: Fault) -> bool:
        return fault.over or (fault.cause is Cause.MACHINE and not self._present(fault))

    def _present(self, fault: Fault) -> list[str]:
        """Return the machines of the fault that the job still uses."""
        return [name for name in fault.machines if name in self.slots]

    def _book(self, began: float, now: float) -> float:
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

    # Recovery

    def _recover(self, fault: Fault, since: float) -> Steps[None]:
        symptom = self.scenario.symptoms[fault.symptom]
        machines = self._present(fault) or [self.names[0]]
        self.roles.died(self._silent(fault, symptom))
        seen = self.judge.judge(symptom, {name: self.slots[name] for name in machines}, self.env.now)
        self.cause = seen.incident_class.value
        self.found.incidents += 1
        self.found.classes[self.cause] += 1
        yield from self._notice(symptom, since)
        yield from self._spend(LostPhase.DECIDING, self.costs.dispatch_s)
        course = _Course(fault, symptom, seen)
        for step in playbooks.steps(seen.incident_class):
            if not course.trains:
                yield from self._take(step, course)
        if fault.cause is Cause.TRANSIENT:
            fault.over = True
        if self._is_over(fault):
            self.found.mechanisms[course.did] += 1
        elif not course.trains:
            self.env.process(self._again(fault))
        if not course.trains:
            self._remember(course)

    def _remember(self, course: _Course) -> None:
        self.history.append(
            PastIncident(
                incident_class=course.seen.incident_class,
                epoch=self.epoch - 1,
                at=self.env.now,
                rungs=tuple(course.rungs),
            )
        )

    def _notice(self, symptom: Symptom, since: float) -> Steps[None]:
        """Spend the time until the first alert: the job stands still, or goes on more slowly."""
        seconds = self._vary(symptom.detect_s if self.variant.inspection else symptom.timeout_s)
        if symptom.slowdown and seconds:
            # Steps that are done stay done: the lost part of the speed counts as undetected time.
            worked = seconds * (1 - symptom.slowdown)
            yield self.env.timeout(worked)
            since = self._book(since, self.env.now)
            seconds -= worked
        if since < self.env.now:
            self.spans.append(Span(since, self.env.now, LostPhase.UNDETECTED, self.cause))
        yield from self._spend(LostPhase.UNDETECTED, seconds, vary=False)

    def _take(self, step: PlaybookStep, course: _Course) -> Steps[None]:
        """Take one step of a playbook. Steps without a case cost no time and change nothing here."""
        fault, costs = course.fault, self.costs
        match step:
            case PlaybookStep.PAUSE:
                self.stopped_at = self.env.now
                yield from self._spend(LostPhase.PAUSING, costs.pause_s)
            case PlaybookStep.RESTART_FIRST if self._restarts_first(course):
                yield from self._restart_first(course)
            case PlaybookStep.DUMP_STACKS if self.variant.aggregation:
                yield from self._spend(LostPhase.DIAGNOSING, costs.stacks_s)
                if suspects := self._aggregate(fault, course.symptom, slow=False):
                    course.seen = self._weigh(suspects, course.seen)
            case PlaybookStep.VOTE_SLOW if self.variant.aggregation:  # while it trains
                course.slow = self._aggregate(fault, course.symptom, slow=True)
            case PlaybookStep.AWAIT_HEALTHY if course.seen.incident_class is IncidentClass.EXTERNAL_SERVICE:
                yield from self._spend(LostPhase.WAITING, costs.service_s)
            case PlaybookStep.DIAGNOSE if self._is_searched(course):
                yield from self._spend(LostPhase.DIAGNOSING, costs.diagnose_s)
                course.broken = self._checked(course)
            case PlaybookStep.ESCALATE:
                course.did = yield from self._answer(course)
            case PlaybookStep.APPLY_UPDATE:
                self._change_code(+1)
                fault.over = True
                course.did = UPDATE
            case PlaybookStep.EVICT if not course.did:
                accused = {*course.seen.sure, *self._silent(fault, course.symptom)}
                course.did = yield from self._evict(accused, fault, REAL_TIME)
            case PlaybookStep.RESUME:
                bound = self.progress.position - 1 if course.symptom.corrupts else None
                yield from self._resume(bound, self.judge.keeps_s(course.seen.incident_class))

    def _is_searched(self, course: _Course) -> bool:
        return bool(self.judge.ladder(course.seen.incident_class).tiers) and not course.slow

    def _checked(self, course: _Course) -> set[str]:
        """Return the machines that stop-time checks find."""
        fault = course.fault
        broken = self._present(fault) if fault.cause is Cause.MACHINE else []
        return set(broken) if broken and self.random.random() < course.symptom.found_share else set()

    def _restarts_first(self, course: _Course) -> bool:
        fault, seen, history = course.fault, course.seen, tuple(self.history)
        if not self.variant.keep_processes:
            return False
        silent = self._silent(fault, course.symptom)
        return self.judge.restarts_first(seen, self._rung(fault, seen), self.judge.fruitless(history), silent)

    def _restart_first(self, course: _Course) -> Steps[None]:
        """Restart, and diagnose beside the training; it is held and stopped again for a machine that is found."""
        fault, course.did = course.fault, REATTEMPT
        yield from self._resume(None, self.judge.keeps_s(course.seen.incident_class))
        course.rungs.append(Rung.RETRY)
        course.trains = True
        self._remember(course)
        if fault.cause is not Cause.TRANSIENT:
            self.env.process(self._again(fault))
        self.began, self.wake = self.env.now, self.env.event()
        found = yield self.wake | self.env.timeout(self._vary(self.costs.diagnose_s))
        struck, self.wake = self.wake in found, None
        self._book(self.began, self.env.now)
        if struck:  # the epoch failed, too (or machines are back): the search is over
            if (again := found[next(iter(found))]) is not None:
                self.pending.appendleft(again)
            return
        if broken := self._checked(course):
            self.stopped_at = self.env.now
            yield from self._spend(LostPhase.PAUSING, self.costs.pause_s)
            course.did = yield from self._evict(broken, fault, STOP_TIME)
            yield from self._resume(None, self.judge.keeps_s(course.seen.incident_class))

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
        changed = self.code_changed_at
        return self.judge.rung(
            seen,
            tuple(self.history),
            can_rollback=self.versions > 1,
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
        yield from self._spend(LostPhase.SWAPPING, self.costs.rollback_s)
        self._change_code(-1)
        if fault.cause is Cause.CODE and self.random.random() < self.costs.newest_share:
            fault.over = True
        return ROLLBACK

    def _replay(self, fault: Fault) -> Steps[str]:
        broken = [self.slots[name] for name in self._present(fault)] if fault.cause is Cause.MACHINE else []
        share = 0.0 if fault.cause is Cause.TRANSIENT else self.costs.reproduced_share
        found = self.judge.replay(broken, lambda: self.random.random() < share)
        for _ in range(found.rounds):
            yield from self._spend(LostPhase.DIAGNOSING, self.costs.replay_s)
        if found.blames_code:
            able = self.versions > 1 and self.variant.rollback
            return (yield from (self._roll_back(fault) if able else self._person(fault)))
        named = {self.names[slot] for slot in found.suspects}
        return (yield from self._evict(named, fault, REPLAYED)) if named else REATTEMPT

    def _change_code(self, versions: int) -> None:
        self.versions += versions
        self.all_anew = True
        self.code_changed_at = self.env.now

    def _person(self, fault: Fault) -> Steps[str]:
        """Ask a person, and wait: for that person, or for the time at which the policy has the job started again."""
        if fault.person_at is None:
            fault.person_at = self.env.now + self.random.expovariate(1 / self.costs.human_s)
        left = max(0.0, fault.person_at - self.env.now)
        # Where a machine is gone, no rank can run on it, and the job stands.
        if self.variant.again and self.cause != IncidentClass.MACHINE_FAULT.value:
            self.limits += 1
            if (pause := self.judge.pause_s(self.limits)) < left:
                yield from self._spend(LostPhase.WAITING, pause, vary=False)
                return WAITED
        yield from self._spend(LostPhase.WAITING, left, vary=False)
        return (yield from self._by_hand(fault))

    def _by_hand(self, fault: Fault) -> Steps[str]:
        """Let the person who found the cause remove it: broken machines go, and the code is fixed."""
        fault.over = True
        self.all_anew |= fault.cause is Cause.CODE
        broken = {name for name in self._present(fault) if fault.cause is Cause.MACHINE}
        if broken:
            yield from self._swap(broken)
        return HUMAN

    def _evict(self, machines: set[str], fault: Fault, mechanism: str) -> Steps[str]:
        machines = {name for name in machines if name in self.slots}
        fleet = self.scenario.machines + self.supply.standbys
        recent = self.evicted_at[-fleet:]
        if not machines or not self.judge.may_evict(recent, len(machines), fleet, self.env.now):
            return (yield from self._person(fault))
        yield from self._swap(machines)
        return mechanism

    def _swap(self, machines: set[str]) -> Steps[None]:
        self.evicted_at += [self.env.now] * len(machines)
        self.found.evictions += len(machines)
        yield from self._spend(LostPhase.SWAPPING, self.costs.evict_s)
        seconds, waiting = self.supply.swap(len(machines))
        if waiting and self.variant.elastic and self.size.shrink(len(machines), waiting):
            seconds, waiting = self.costs.shrink_s, 0.0
            self.all_anew = True
        yield from self._spend(LostPhase.WAITING if waiting else LostPhase.SWAPPING, seconds)
        for name in sorted(machines):
            self.lost.add(self._replace(name))

    def _replace(self, name: str) -> int:
        """Give a machine's slot to a new one; return the slot."""
        slot = self.slots.pop(name)
        self.roles.left(name)
        self.names[slot] = new = f"m{self.next_name}"
        self.slots[new] = slot
        self.next_name += 1
        return slot

    def _resume(self, bound: int | None, keep_s: float = 0.0) -> Steps[None]:
        """Start the next epoch; processes of ranks that are kept for ``keep_s`` seconds go on in it."""
        if self.size.may_grow:
            self.size.grow()
            self.all_anew = True
        queue = self.supply.start()
        if queue:
            yield from self._spend(LostPhase.WAITING, queue)
        memory = self.variant.checkpoint_s is None and self.variant.strategy is not Strategy.REQUEUE
        plan = self.judge.restore(
            self.lost, self.progress.position, self.progress.remotes, bound, memory=memory
        )
        self.found.tiers[plan.tier.value if plan.tier else "scratch"] += 1
        if plan.tier:
            cost = self.costs.memory_s if plan.tier is Tier.MEMORY else self.costs.s3_s
            yield from self._spend(LostPhase.RESTORING, cost)
        self.progress.restore(plan.step)
        self.lost.clear()
        in_time = self.env.now - self.stopped_at < keep_s
        yield from self._start(kept=in_time and plan.tier is Tier.MEMORY and not self.all_anew)

    def _start(self, *, kept: bool = False) -> Steps[None]:
        if self.update_waits:
            self.update_waits = False
            self._change_code(+1)
            self.found.mechanisms[MERGED] += 1
            kept = False
        self.all_anew = False
        self.found.in_process += kept
        self._next_epoch()
        table = self.costs.kept_s if kept else self.costs.restart_s
        yield from self._spend(LostPhase.RESTARTING, at_size(table, self.scenario.machines))

    def _next_epoch(self) -> None:
        self.epoch += 1
        self.found.restarts += self.epoch > 2
        self.judge.epoch(self.epoch, tuple(self.names))
        self.roles.epoch(self.epoch)

    def _again(self, fault: Fault) -> Steps[None]:
        """Let a fault that was not removed come back."""
        yield self.env.timeout(self.random.expovariate(1 / self.costs.again_s[fault.cause]))
        if not self._is_over(fault):
            self._hit(fault)

    # What diagnosis sees

    def _silent(self, fault: Fault, symptom: Symptom) -> list[str]:
        """Return the machines that do not answer when the job is stopped."""
        return (
            self._present(fault) if any(sign.kind.value == "machine_lost" for sign in symptom.signs) else []
        )

    def _aggregate(self, fault: Fault, symptom: Symptom, *, slow: bool) -> set[str]:
        broken = self._present(fault)
        if fault.cause is not Cause.MACHINE or not broken or not symptom.stacks:
            return set()
        (shows,) = self.random.choices(list(symptom.stacks), list(symptom.stacks.values()))
        rounds = self.judge.policy.diagnose.slow_rounds if slow else 1
        return {
            self.names[slot] for slot in self.judge.aggregate(self.slots[broken[0]], shows, rounds=rounds)
        }

    # Time

    def _spend(self, phase: LostPhase, seconds: float, *, vary: bool = True) -> Steps[None]:
        seconds = self._vary(seconds) if vary else seconds
        if seconds > 0:
            self.spans.append(Span(self.env.now, self.env.now + seconds, phase, self.cause))
            yield self.env.timeout(seconds)

    def _vary(self, seconds: float) -> float:
        """Return a duration around ``seconds``, which stays the mean."""
        spread = self.costs.spread
        return (
            seconds * exp(self.random.gauss(-spread * spread / 2, spread)) if spread and seconds else seconds
        )
