"""The policies that run in production, asked about a simulated job. Nothing is decided here by other rules.

Large inputs are cut down where the answer cannot change, so that months take seconds: a restore plan is asked
about the ranks whose machines are lost and one other (all others have their own memory, as that one has); an
aggregation analysis about a few data-parallel slices of the job, with the full job's eviction limit. Tests compare
both with the full input.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from math import gcd
from typing import NamedTuple

from holdfast.models.agent import Frame, StackDump
from holdfast.models.alert import Alert, Classification, IncidentClass, Rung
from holdfast.models.checkpoint import RemoteCheckpoint, RestorePlan, Shard, Tier
from holdfast.models.job import Job, JobSpec, JobState, Parallelism
from holdfast.policies.classify import suspects
from holdfast.policies.classify.decision import JobContext
from holdfast.policies.classify.incident_class import classify, sure_machines
from holdfast.policies.config.diagnosis import AggregatePolicy
from holdfast.policies.config.ladders import ClassLadder
from holdfast.policies.config.policy import Policy
from holdfast.policies.detect import standing_out, switches
from holdfast.policies.detect.standing_out import Accusation
from holdfast.policies.diagnose import replay_groups, slow_vote
from holdfast.policies.diagnose.aggregate import aggregate
from holdfast.policies.diagnose.replay_groups import Next
from holdfast.policies.escalate import breaker, ladder, waits
from holdfast.policies.escalate.ladder import PastIncident
from holdfast.policies.pool import spare_pool
from holdfast.policies.restore import kept_processes, placement, restart_first, restore_plan
from holdfast.simulate.scenario import Scenario, Symptom, Variant

JOB = "sim"
SLICES = 3
"""Data-parallel slices that an aggregation analysis looks at, at least: the culprit's and two others."""


class Judgement(NamedTuple):
    """The meaning of the alerts of one incident."""

    incident_class: IncidentClass
    sure: tuple[str, ...] = ()
    """Machines that are surely at fault."""
    accused: tuple[str, ...] = ()
    """Machines that the alerts accuse, surely or not."""
    switch: str = ""
    own_end: tuple[str, str] = ("", "")
    """Exception of the first rank to die, and the cause that its log names; empty: none is known."""
    beside_end: tuple[str, ...] = ()
    """Machines that signals beside that end accuse."""
    again: tuple[str, ...] = ()
    """Those of the accused that stood out in hangs before: they are evicted before any retry."""


class ReplayResult(NamedTuple):
    """The result of a replay."""

    suspects: tuple[int, ...]
    blames_code: bool
    rounds: int


class Judge:
    """Asks the policies on behalf of one run."""

    def __init__(self, scenario: Scenario, variant: Variant, policy: Policy) -> None:
        self.policy = policy
        self._variant = variant
        spec = spec_of(scenario, scenario.machines)
        self._job = _running(spec)
        self._peers = _peers(_shape(spec))

    @property
    def machines(self) -> tuple[str, ...]:
        """Names by slot."""
        return self._job.machines

    def epoch(self, number: int, machines: tuple[str, ...]) -> None:
        """Set the job's epoch and its machines."""
        self._job = self._job.model_copy(update={"epoch": number, "machines": machines})

    def judge(self, symptom: Symptom, machines: Mapping[str, int], now: float) -> Judgement:
        """Classify the alerts of ``symptom`` on ``machines`` (with their slots) at ``now``.

        Alerts that the policy does not know open the incident that any interruption opens: a crash.
        """
        per, epoch = self._job.spec.ranks_per_machine, self._job.epoch
        alerts = [
            alert
            for name, slot in machines.items()
            for alert in alert_of(symptom, name, slot * per, epoch, now)
        ]
        context = JobContext(job=self._job, now=now)
        found = classify(alerts, context, self.policy)
        if not isinstance(found, Classification):
            found = Classification(
                incident_class=IncidentClass.JOB_CRASH, confidence=0.5, machine=None, reasons=("it stopped",)
            )
        # A machine that is named by a hang only stands out in it.
        root = None if found.incident_class is IncidentClass.JOB_HANG else found.machine
        named = suspects.named(alerts, root, self._job)
        return Judgement(
            incident_class=found.incident_class,
            sure=sure_machines(alerts, context, self.policy) if found.machine is not None else (),
            accused=named if len(named) <= self.policy.aggregate.limit(self._job.spec.machines) else (),
            switch=switches.shared(named, alerts),
            own_end=restart_first.own_end(alerts),
            beside_end=suspects.named(alerts, None, self._job),
        )

    def stands_out(
        self, seen: Judgement, now: Accusation, past: Sequence[Accusation], evicted_at: Sequence[float]
    ) -> Judgement:
        """Judge a hang from its stacks: a machine that only stands out is evicted at the second time.

        ``past``: machines that stood out in earlier hangs; ``evicted_at``: when machines were evicted for that.
        """
        machines = standing_out.weigh(
            now, past, evicted_at, self._job.spec.machines, self.policy.ladder.standing_out
        ).machines
        return seen._replace(accused=(*seen.accused, *machines), again=machines)

    def ladder(self, incident_class: IncidentClass) -> ClassLadder:
        """Return the ladder of a class, without the rungs that the variant does not have."""
        found = self.policy.ladder.of(incident_class)
        off = set() if self._variant.replay else {Rung.REPLAY}
        return found.model_copy(update={"rungs": tuple(rung for rung in found.rungs if rung not in off)})

    def rung(
        self,
        seen: Judgement,
        history: Sequence[PastIncident],
        *,
        can_rollback: bool,
        code_changed_s_ago: float | None = None,
        common_cause: bool = False,
    ) -> Rung:
        """Return the ladder's next rung. Repeat offenders are those of hangs: an evicted machine does not return."""
        rules = self.policy.ladder
        circumstances = ladder.Circumstances(
            can_rollback=can_rollback and self._variant.rollback,
            code_changed_s_ago=code_changed_s_ago,
            accused=seen.accused,
            offenders=frozenset(seen.again),
            switch=seen.switch,
            common_cause=common_cause,
        )
        return ladder.next_rung(
            history,
            (),
            self.ladder(seen.incident_class),
            rules.progress_steps,
            circumstances,
            rules.code_changed_s,
        ).rung

    def restarts_first(self, seen: Judgement, rung: Rung, again: int, silent: Collection[str]) -> bool:
        """Return whether the job is restarted before its diagnosis, which then runs beside the training.

        Args:
            seen: the incident.
            rung: the ladder's next one, if no machine is found.
            again: earlier failures without progress since.
            silent: machines that did not answer when the ranks were stopped.
        """
        raised, cause = seen.own_end
        death = restart_first.DeathFacts(
            incident_class=seen.incident_class,
            kept=int(self._variant.keep_processes and self.keeps_s(seen.incident_class) > 0),
            silent=tuple(silent),
            again=again,
            rung=rung,
            raised=raised,
            cause=cause,
            accused=seen.beside_end,
        )
        wanted = self.policy.keep_processes.restart_first
        return not restart_first.why_diagnosed_first(death, wanted=wanted)

    def keeps_s(self, incident_class: IncidentClass) -> float:
        """Return for how long processes that are kept wait for their next epoch, in seconds; 0: none is kept."""
        keep = self.policy.keep_processes
        return (
            kept_processes.wait_s(keep, incident_class, again=False) if self._variant.keep_processes else 0.0
        )

    def pause_s(self, times: int) -> float:
        """Return the seconds until a job that met a limit is tried again, after so many waits without a new step."""
        return waits.pause_s(times, self.policy.again)

    def fruitless(self, history: Sequence[PastIncident]) -> int:
        """Return how many of the newest incidents brought no progress."""
        return len(ladder.since_progress(history, self.policy.ladder.progress_steps))

    def may_evict(self, recent: Sequence[float], wanted: int, fleet: int, now: float) -> bool:
        """Return the eviction breaker's answer."""
        return breaker.may_evict(recent, wanted, fleet, now, self.policy.breaker).allowed

    def aggregate(self, slot: int, shows: str, *, rounds: int = 1) -> tuple[int, ...]:
        """Return slots to evict after looks at all stacks, in which those of ``slot``'s machine stand out.

        ``rounds`` above 1: a vote over that many looks, for a job that is slow.
        """
        return _aggregated(self._job.spec, slot, shows, rounds, self.policy)

    def replay(self, culprits: Collection[int], reproduced: Callable[[], bool]) -> ReplayResult:
        """Run a dual-phase replay, repeated as long as the policy requires it.

        ``culprits`` are the broken slots; empty: every group fails, the cause is in the code. ``reproduced`` is
        asked for each phase of each round.
        """
        spec = self._job.spec
        block = spec.parallelism.block()
        plan = _replay_plan(spec.machines, max(1, -(-block // spec.ranks_per_machine)))
        limit = self.policy.aggregate.limit(spec.machines)
        failed: tuple[set[int], set[int]] = (set(), set())
        for done in range(self.policy.replay.repeats + 1):
            for found, groups in zip(failed, (plan.horizontal, plan.vertical), strict=True):
                if reproduced():
                    found.update(
                        i for i, group in enumerate(groups) if not culprits or set(group) & set(culprits)
                    )
            verdict = replay_groups.suspects(plan, *failed)
            decision = replay_groups.decide(verdict, limit, self.policy.replay.repeats - done)
            if decision.next is not Next.AGAIN:
                break
        return ReplayResult(decision.suspects, decision.next is Next.BLAME_CODE, done + 1)

    def restore(
        self, lost: Collection[int], position: int, saved: Sequence[int], bound: int | None, *, memory: bool
    ) -> RestorePlan:
        """Return the step to go on from: ``lost`` slots have new machines, ``saved`` are the steps in S3."""
        remotes = [_remote(step) for step in saved]
        if not memory:
            # No machine holds a state: the answer for one rank is that for all.
            return restore_plan.choose((), remotes, 1, {}, bound)
        return restore_few(self._peers, frozenset(lost), position, remotes, bound)


def names(machines: int) -> tuple[str, ...]:
    """Return the names of the first machines."""
    return tuple(f"m{slot}" for slot in range(machines))


def spec_of(scenario: Scenario, machines: int) -> JobSpec:
    """Return the job at some number of machines."""
    return JobSpec(
        name=JOB,
        script="train.py",
        machines=machines,
        ranks_per_machine=scenario.ranks_per_machine,
        parallelism=scenario.parallelism,
    )


def pool_size(scenario: Scenario, variant: Variant, policy: Policy) -> int:
    """Return the number of standbys of a pool: as given, or by the sizing policy."""
    if variant.pool is not None:
        return variant.pool
    return spare_pool.size(
        scenario.machines,
        scenario.machine_rate,
        policy.spare_pool.percentile,
        policy.spare_pool.minimum,
        policy.spare_pool.maximum,
        replenish_h=scenario.replenish_h,
    )


def restore_few(
    peers: Mapping[int, int],
    lost: frozenset[int],
    position: int,
    remotes: Sequence[RemoteCheckpoint],
    bound: int | None,
) -> RestorePlan:
    """Return the step to go on from, from the lost machines and one other: the rest are like that one."""
    healthy = next((slot for slot in peers if slot not in lost), None)
    asked = sorted(lost) if healthy is None else [healthy, *sorted(lost)]
    return _choose(asked, peers, lost, (position, remotes, bound))


def _choose(
    asked: Sequence[int],
    peers: Mapping[int, int],
    lost: frozenset[int],
    state: tuple[int, Sequence[RemoteCheckpoint], int | None],
) -> RestorePlan:
    position, remotes, bound = state
    shards = []
    for rank, slot in enumerate(asked):
        holders = [(slot, Tier.MEMORY)] + ([(peers[slot], Tier.PEER)] if slot in peers else [])
        for step in {position, position - 1} - {0, -1}:  # two buffers alternate
            shards += [
                Shard(
                    job=JOB, rank=rank, step=step, epoch=1, machine=f"m{at}", tier=tier, nbytes=1, digest=""
                )
                for at, tier in holders
                if at not in lost
            ]
    machine_of = {rank: f"new-{slot}" if slot in lost else f"m{slot}" for rank, slot in enumerate(asked)}
    return restore_plan.choose(shards, remotes, len(asked), machine_of, bound)


def _remote(step: int) -> RemoteCheckpoint:
    return RemoteCheckpoint(job=JOB, step=step, epoch=1, world_size=1, key=f"step-{step}")


class _Shape(NamedTuple):
    """The fields of a job file that the policies need, as a key for cached answers."""

    machines: int
    ranks_per_machine: int
    parallelism: Parallelism


def _shape(spec: JobSpec) -> _Shape:
    return _Shape(spec.machines, spec.ranks_per_machine, spec.parallelism)


@lru_cache(maxsize=8)
def _peers(shape: _Shape) -> Mapping[int, int]:
    return placement.backups(*shape).mapping


@lru_cache(maxsize=8)
def _replay_plan(machines: int, pp: int) -> replay_groups.ReplayPlan:
    return replay_groups.plan(machines, min(pp, machines))


def _aggregated(spec: JobSpec, slot: int, shows: str, rounds: int, policy: Policy) -> tuple[int, ...]:
    """Ask about the culprit's column of machines and two others; the answer in slots of the full job."""
    limit = policy.aggregate.limit(spec.machines)
    rules = policy.aggregate.model_copy(update={"max_machines": limit, "max_share": 1.0})
    tp, pp, per = spec.parallelism.tp, spec.parallelism.pp, spec.ranks_per_machine
    dp = spec.parallelism.dp(spec.world_size)
    # Machines per pipeline stage; a slice of the job keeps whole machines.
    unit = per // gcd(per, tp)
    # As many that the data-parallel groups stay larger than the others, as they are in the full job.
    least = max(unit * SLICES, -(-(max(tp, pp) + 1) // unit) * unit)
    small = least if (dp * tp) % per == 0 and dp > least and dp % unit == 0 else dp
    wide, narrow = dp * tp // per, small * tp // per
    if small == dp or not wide:
        return _analysed(_shape(spec), slot, shows, rounds, rules)
    stage, column = divmod(slot, wide)
    part = spec.model_copy(update={"machines": narrow * pp})
    # Columns that one data-parallel slice spans stay together.
    span = max(1, tp // per)
    base = column - column % span
    found = _analysed(_shape(part), stage * narrow + column % span, shows, rounds, rules)
    back = [(index // narrow, index % narrow) for index in found]
    return tuple(at * wide + (base + offset) % wide for at, offset in back)


def _running(spec: JobSpec) -> Job:
    return Job(
        spec=spec,
        state=JobState.RUNNING,
        epoch=1,
        code_version="v1",
        machines=names(spec.machines),
        submitted_at=0.0,
    )


@lru_cache(maxsize=4096)
def _analysed(shape: _Shape, slot: int, shows: str, rounds: int, rules: AggregatePolicy) -> tuple[int, ...]:
    """Return the slots that the analysis names, for stacks in which ``slot`` stands out in the way of ``shows``."""
    spec = JobSpec(name=JOB, script="train.py", **shape._asdict())
    job = _running(spec)
    found = aggregate(stacks(spec, slot, shows), job, rules)
    named = found.suspects if rounds == 1 else slow_vote.decide([found] * rounds, job, rules).suspects
    return tuple(int(name[1:]) for name in named)


def stacks(spec: JobSpec, slot: int, shows: str) -> list[StackDump]:
    """Make the ranks' stacks: one rank computes while all wait; its pipeline differs; or all agree."""
    rank = slot * spec.ranks_per_machine
    odd: set[int] = set()
    if shows == "one":
        odd = {rank}
    elif shows == "group":
        tp, dp = spec.parallelism.tp, spec.parallelism.dp(spec.world_size)
        rest = rank % (dp * tp)
        odd = {stage * dp * tp + rest for stage in range(spec.parallelism.pp)}
    wait = (Frame(function="all_reduce", file="torch/distributed/distributed_c10d.py", line=1),)
    elsewhere = {
        "one": (Frame(function="forward", file="model.py", line=1),),
        "group": (Frame(function="recv", file="torch/distributed/distributed_c10d.py", line=2),),
    }
    return [
        StackDump(
            machine=f"m{number // spec.ranks_per_machine}",
            pid=number,
            rank=number,
            frames=elsewhere[shows] if number in odd else wait,
        )
        for number in range(spec.world_size)
    ]


def alert_of(symptom: Symptom, machine: str, rank: int, epoch: int, now: float) -> list[Alert]:
    """Return the alerts that a symptom on one machine raises."""
    return [
        Alert(
            kind=sign.kind, job=JOB, machine=machine, rank=rank, epoch=epoch, at=now, evidence=sign.evidence
        )
        for sign in symptom.signs
    ]
