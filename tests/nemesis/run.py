"""Play one seed, or one schedule of faults; shrink what fails."""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.nemesis import faults
from tests.nemesis.faults import GATEWAYS, Fault
from tests.nemesis.history import History
from tests.nemesis.invariants import Invariants
from tests.nemesis.patches import patched
from tests.nemesis.shape import MACHINES, STANDBYS, Shape
from tests.nemesis.site import Site

START_S = 30.0
REST_S = 2.0
"""A quiet site must stay quiet for so long."""
BOUND_S = 150.0
"""So long after the last fault was healed every incident has ended."""


COLLECT_EVERY = 10
_runs = itertools.count(1)


@functools.cache
def _without_collections() -> None:
    """None in the middle of a run: what they end would run there. Modules need not be looked through at all."""
    gc.collect()
    gc.freeze()
    gc.disable()


def _collect() -> None:
    """End tasks that were left in the middle of something, without their warnings."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
    logging.disable(level)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run."""

    seed: int | str
    faults: tuple[Fault, ...]
    violations: tuple[str, ...]
    history: History
    took_s: float
    """Virtual."""
    struck: int
    repeated: int
    incidents: int
    job: str


def shape_of(seed: int | str) -> Shape:
    """The job of a seed: every other one has roles, or keeps processes; some are elastic."""
    draw = random.Random(f"shape {seed}")
    return Shape(roles=draw.random() < 0.5, elastic=draw.random() < 0.35, kept=draw.random() < 0.5)


def drawn(seed: int | str) -> list[Fault]:
    """The faults of a seed."""
    machines = [f"m{n}" for n in range(MACHINES + STANDBYS)]
    return faults.plan(seed, machines, list(GATEWAYS), shape_of(seed))


def play(seed: int | str, planned: Sequence[Fault] | None = None, shape: Shape | None = None) -> Outcome:
    """One run; ``shape``: that of the job (None: as the seed draws it)."""
    planned = drawn(seed) if planned is None else planned
    site = Site(seed, shape or shape_of(seed))
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    _without_collections()
    try:
        with patched(site):
            _play(site, planned)
            site.scheduler.end()
            outcome = _outcome(site, planned)
            del site
            return outcome
    finally:
        if next(_runs) % COLLECT_EVERY == 0:
            _collect()
        sys.unraisablehook = hook


def _play(site: Site, planned: Sequence[Fault]) -> None:
    invariants = Invariants(site)
    site.watchers.append(invariants)
    site.open()
    scheduler = site.scheduler
    if not scheduler.run(lambda: site.quiet, START_S):
        site.violated("every incident ends", f"the job did not start: {site.unrest}")
        return
    began = scheduler.now
    for fault in planned:
        scheduler.at(began + fault.at, lambda fault=fault: faults.inject(site, fault))  # type: ignore[misc]
    over = began + max((fault.over_at for fault in planned), default=0.0)
    scheduler.run(
        lambda: False, began + max((fault.at + fault.for_s for fault in planned), default=0.0) + REST_S
    )
    quiet_since: list[float] = []

    def at_rest() -> bool:
        if not site.quiet or any(process.stopped for process in scheduler.processes):
            quiet_since.clear()
        else:
            quiet_since.append(scheduler.now)
        return bool(quiet_since) and scheduler.now - quiet_since[0] >= REST_S

    scheduler.run(at_rest, over + BOUND_S)
    invariants.finish()


def _outcome(site: Site, planned: Sequence[Fault]) -> Outcome:
    jobs = site.look(lambda ledger: ledger.jobs())
    incidents = site.look(lambda ledger: ledger.incidents(evidence=False))
    for incident in reversed(incidents):
        site.note(
            "incident",
            id=incident.id,
            playbook=incident.incident_class.value,
            state=incident.state.value,
            attempt=incident.attempt,
            summary=incident.summary[:150],
        )
    return Outcome(
        seed=site.seed,
        faults=tuple(planned),
        violations=tuple(site.violations),
        history=site.history,
        took_s=site.scheduler.now,
        struck=site.struck,
        repeated=site.network.repeated,
        incidents=len(incidents),
        job=jobs[0].state.value if jobs else "none",
    )


def shrink(outcome: Outcome, again: Callable[[Sequence[Fault]], Outcome]) -> Outcome:
    """Leave out one fault after the other as long as some invariant is still broken."""
    smallest = outcome
    at = 0
    while at < len(smallest.faults):
        fewer = [*smallest.faults[:at], *smallest.faults[at + 1 :]]
        tried = again(fewer)
        if tried.violations:
            smallest = tried
        else:
            at += 1
    return smallest
