"""Many lives of a job, summed up: means with confidence intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pydantic import Field
from scipy.stats import t as student

from holdfast.models.base import Frozen
from holdfast.policies.accounting.lost_time import US, LostPhase
from holdfast.simulate.life import Life
from holdfast.simulate.scenario import Variant
from holdfast.simulate.simulated_replica import RoleLife

CONFIDENCE = 0.95


class Mean(Frozen):
    """A mean over replications, with its 95 % confidence interval (Student's t)."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Compute the mean of at least one value; a single one has no interval."""
        n = len(values)
        mean = sum(values) / n
        if n < 2:
            return cls(mean=mean, low=mean, high=mean)
        deviation = (sum((value - mean) ** 2 for value in values) / (n - 1)) ** 0.5
        half = float(student.ppf(0.5 + CONFIDENCE / 2, n - 1)) * deviation / n**0.5
        return cls(mean=mean, low=mean - half, high=mean + half)


class RoleOutcome(Frozen):
    """The outcome of a role under one variant; numbers are per replication."""

    ran: Mean
    """Share of the wanted time in which its replicas' processes were there, as `holdfast status` counts it."""
    ready: Mean
    """Share of the wanted time in which they could be reached."""
    failures: Mean
    restarts: Mean
    """Starts of replicas after their first."""
    moves: Mean
    """Of these, those on another machine."""
    asked: Mean
    """Persons that were asked."""
    trainer_h: Mean
    """Hours that the trainer stood for it."""

    @classmethod
    def of(cls, lives: Sequence[RoleLife]) -> RoleOutcome:
        """Summarise at least one life."""
        return cls(
            ran=Mean.of([life.ran_s / life.wanted_s if life.wanted_s else 0.0 for life in lives]),
            ready=Mean.of([life.ready_s / life.wanted_s if life.wanted_s else 0.0 for life in lives]),
            failures=Mean.of([life.failures for life in lives]),
            restarts=Mean.of([life.restarts for life in lives]),
            moves=Mean.of([life.moves for life in lives]),
            asked=Mean.of([life.asked for life in lives]),
            trainer_h=Mean.of([life.trainer_s / 3600 for life in lives]),
        )


class SimulatedOutcome(Frozen):
    """The outcome of one variant. Hours are per replication."""

    variant: Variant
    title: str
    replications: int
    days: float
    ettr: Mean
    lost: Mean
    """Hours, of all phases."""
    lost_h: dict[str, Mean]
    """By phase."""
    lost_by_class_h: dict[str, Mean]
    """By incident class; ``""``: no incident."""
    incidents: Mean
    evictions: Mean
    restarts: Mean
    in_process: Mean
    """Of the restarts, those in which the ranks that had not died kept their processes."""
    swaps_short: Mean
    """Swaps for which the pool was too small."""
    mechanisms: dict[str, float]
    """Share of the incidents that each mechanism ended."""
    classes: dict[str, float]
    tiers: dict[str, float]
    """Share of the restores from each tier."""
    worst_h: Mean
    """Longest stretch without a new step."""
    worst_of_all_h: float
    steps: Mean
    roles: dict[str, RoleOutcome] = Field(default_factory=dict)
    seed: int = Field(ge=0)


def sum_up(variant: Variant, lives: Sequence[Life], days: float, seed: int) -> SimulatedOutcome:
    """Summarise at least one life."""
    phases: list[Mapping[str, float]] = [life.account.by_phase() for life in lives]
    classes: list[Mapping[str, float]] = [life.account.by_class() for life in lives]
    order = [phase.value for phase in LostPhase]
    return SimulatedOutcome(
        variant=variant,
        title=variant.title,
        replications=len(lives),
        days=days,
        ettr=Mean.of([life.account.ratio for life in lives]),
        lost=Mean.of([(life.account.wall_us - life.account.productive_us) / US / 3600 for life in lives]),
        lost_h={name: _hours(phases, name) for name in order if any(name in row for row in phases)},
        lost_by_class_h={
            name: _hours(classes, name) for name in sorted({name for row in classes for name in row})
        },
        incidents=Mean.of([life.incidents for life in lives]),
        evictions=Mean.of([life.evictions for life in lives]),
        restarts=Mean.of([life.restarts for life in lives]),
        in_process=Mean.of([life.in_process for life in lives]),
        swaps_short=Mean.of([life.swaps_short for life in lives]),
        mechanisms=_shares(lives, lambda life: life.mechanisms),
        classes=_shares(lives, lambda life: life.classes),
        tiers=_shares(lives, lambda life: life.tiers),
        worst_h=Mean.of([life.account.worst_us / US / 3600 for life in lives]),
        worst_of_all_h=max(life.account.worst_us for life in lives) / US / 3600,
        steps=Mean.of([life.steps for life in lives]),
        roles={name: RoleOutcome.of([life.roles[name] for life in lives]) for name in lives[0].roles},
        seed=seed,
    )


def _hours(rows: Sequence[Mapping[str, float]], name: str) -> Mean:
    return Mean.of([row.get(name, 0.0) / 3600 for row in rows])


def _shares(lives: Sequence[Life], of: Callable[[Life], Counter[str]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for life in lives:
        total.update(of(life))
    whole = sum(total.values())
    return {name: count / whole for name, count in total.most_common()} if whole else {}
