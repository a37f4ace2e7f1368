"""Replications, spread over the processors."""

from __future__ import annotations

import multiprocessing
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from holdfast.errors import SettingsError
from holdfast.policies.config.policy import Policy
from holdfast.simulate.job import live
from holdfast.simulate.life import Life
from holdfast.simulate.scenario import Scenario, Strategy, Variant
from holdfast.simulate.summary import SimulatedOutcome, sum_up

CHUNK = 4
"""Replications that a worker takes at a time."""

OnDone = Callable[[int], None]


def run(
    scenario: Scenario,
    policy: Policy,
    *,
    replications: int,
    seed: int = 1,
    jobs: int | None = None,
    done: OnDone = lambda _: None,
) -> list[SimulatedOutcome]:
    """Simulate every variant; the n-th replication sees the same faults under each.

    Args:
        scenario: what to simulate.
        policy: of the site.
        replications: lives of each variant.
        seed: the same seed gives the same answer, for any ``jobs``.
        jobs: worker processes; None: one for each processor.
        done: called with the number of lives that were finished since the last call.

    Raises:
        SettingsError: no replication is asked for.
    """
    if replications < 1:
        raise SettingsError(f"replications = {replications}: expected 1 or more")
    workers = min(jobs or os.cpu_count() or 1, -(-replications * len(scenario.variants) // CHUNK))
    work = [
        (index, range(first, min(first + CHUNK, replications)))
        for index in range(len(scenario.variants))
        for first in range(0, replications, CHUNK)
    ]
    lives: dict[int, dict[int, Life]] = defaultdict(dict)
    if workers <= 1:
        for index, numbers in work:
            for number in numbers:
                lives[index][number] = live(scenario, scenario.variants[index], policy, f"{seed}:{number}")
                done(1)
    else:
        # A fork of a process with threads may hang; a fork server has none.
        context = multiprocessing.get_context("forkserver")
        with ProcessPoolExecutor(
            workers, context, initializer=_prepare, initargs=(scenario, policy, seed)
        ) as pool:
            asked = {pool.submit(_live, index, numbers): (index, numbers) for index, numbers in work}
            for future in as_completed(asked):
                index, numbers = asked[future]
                lives[index].update(zip(numbers, future.result(), strict=True))
                done(len(numbers))
    return [
        sum_up(variant, [lives[index][number] for number in range(replications)], scenario.days, seed)
        for index, variant in enumerate(scenario.variants)
    ]


def variants_of(strategies: Sequence[str], checkpoints: Sequence[str], base: Variant) -> tuple[Variant, ...]:
    """Each strategy with each checkpoint interval.

    Args:
        strategies: ``requeue``, ``reschedule``, ``pool``, ``pool:N``, ``unlimited``.
        checkpoints: ``every-step`` or minutes, such as ``30m``.
        base: everything else.

    Raises:
        SettingsError: one is written wrongly.
    """
    return tuple(
        base.model_copy(update={**_strategy(strategy), "checkpoint_s": _interval(checkpoint)})
        for strategy in strategies
        for checkpoint in checkpoints
    )


def with_and_without_processes(variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """Each variant as it is, and with ranks that keep their processes.

    Raises:
        SettingsError: one of them starts all processes again in any case.
    """
    for each in variants:
        if each.strategy is Strategy.REQUEUE or each.checkpoint_s is not None:
            raise SettingsError(
                f"--keep-processes with {each.title}: expected a strategy other than requeue, and every-step"
            )
    return tuple(
        each.model_copy(update={"keep_processes": kept}) for each in variants for kept in (False, True)
    )


def with_and_without_roles(scenario: Scenario) -> tuple[Variant, ...]:
    """Each variant of a scenario as it is, and without its roles.

    Raises:
        SettingsError: the scenario has no roles.
    """
    if not scenario.roles:
        raise SettingsError("--without-roles: expected a scenario file that has `roles`")
    return tuple(
        each.model_copy(update={"roles": roles, "name": _without(each.name, roles=roles)})
        for each in scenario.variants
        for roles in (True, False)
    )


def _without(name: str, *, roles: bool) -> str:
    return name if roles or not name else f"{name}, no roles"


def _strategy(text: str) -> dict[str, object]:
    name, _, size = text.partition(":")
    known = ", ".join(each.value for each in Strategy)
    if name not in {each.value for each in Strategy} or (size and (name != "pool" or not size.isdecimal())):
        raise SettingsError(f"strategy {text!r}: expected one of {known}, or pool:N with N standbys")
    return {"strategy": Strategy(name), "pool": int(size) if size else None}


def _interval(text: str) -> float | None:
    if text == "every-step":
        return None
    minutes = text.removesuffix("m")
    try:
        value = float(minutes) * 60
    except ValueError:
        value = 0.0
    if not text.endswith("m") or value <= 0:
        raise SettingsError(f"checkpoint {text!r}: expected every-step, or minutes such as 30m")
    return value


_given: tuple[Scenario, Policy, int] | None = None


def _prepare(scenario: Scenario, policy: Policy, seed: int) -> None:
    global _given  # noqa: PLW0603  (what every task of a worker shares)
    _given = (scenario, policy, seed)


def _live(index: int, numbers: range) -> list[Life]:
    assert _given is not None
    scenario, policy, seed = _given
    return [live(scenario, scenario.variants[index], policy, f"{seed}:{number}") for number in numbers]
