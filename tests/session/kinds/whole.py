"""All kinds in one state: the script of a job, ``whole.main(LAST)``, whose ranks compare what came back with values
that they compute again, at once and after the last change.

Kinds that change their shape ask for a new plan, which takes some calls. So the state's age is not the step: it changes
up to LAST times, and steps go on without a change until the test ends them.
"""

from __future__ import annotations

import os
import random
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

import holdfast
from tests.session.kinds.compare import difference
from tests.session.kinds.test_trainings import contents
from tests.session.kinds.trainings import TRAININGS
from tests.session.kinds.values import VALUES, Holder
from tests.session.small import seed

KINDS = [each for each in TRAININGS if not each.refused]
HELD = [each for each in VALUES if not each.refused]


class Whole:
    """Every kind of training and of value, as one rank has them; some values differ from rank to rank."""

    def __init__(self, rank: int) -> None:
        self.age = Holder(int)
        self.trainings = [each.make() for each in KINDS]
        self.alike = [Holder(each.at) for each in HELD]
        self.own = [Holder(partial(_later, each.at, rank)) for each in HELD]

    def advance(self) -> None:
        age = self.age.value + 1
        for each in (self.age, *self.alike, *self.own):
            each.advance(age)
        for kind, state in zip(KINDS, self.trainings, strict=True):
            kind.step(state, age)

    def parts(self, *, own: bool) -> dict[str, Any]:
        """As it is given to the Session."""
        found = {
            f"t{number}-{name}": part
            for number, state in enumerate(self.trainings)
            for name, part in state.items()
        }
        found["age"] = self.age
        found |= {f"v{number}": each for number, each in enumerate(self.alike)}
        return found | {
            f"own{number}": each if own else holdfast.Part(None) for number, each in enumerate(self.own)
        }

    def difference(self, other: Whole, *, own: bool) -> Iterator[str]:
        """The differences of ``other``."""
        for kind, mine, theirs in zip(KINDS, self.trainings, other.trainings, strict=True):
            if found := difference(contents(mine), contents(theirs)):
                yield f"{kind.name}: {found}"
        for held, others in ((self.alike, other.alike), *([(self.own, other.own)] if own else [])):
            for value, one, another in zip(HELD, held, others, strict=True):
                if found := difference(one.value, another.value):
                    yield f"{value.name}: {found}"


def _later(at: Any, rank: int, step: int) -> Any:
    return at(step + rank)


def main(last: int, *, own: bool = True) -> None:
    """Train to the age ``last`` and go on without a change; print differences from an uninterrupted run at both."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    seed(1 if "FIRST" in os.environ else 90 + last)
    state = Whole(rank)
    parts = state.parts(own=own)
    session = holdfast.Session()
    step = session.restore(parts)
    _print(step, state, rank, own=own)
    while True:
        if state.age.value < last:
            state.advance()
            if state.age.value == last:
                _print(step + 1, state, rank, own=own)
        else:
            time.sleep(0.1)
        step += 1
        dist.all_reduce(torch.zeros(1))
        session.step(step)
        session.checkpoint(parts)


def _print(step: int, state: Whole, rank: int, *, own: bool) -> None:
    with _random_state_kept():
        seed(1)
        uninterrupted = Whole(rank)
        for _ in range(state.age.value):
            uninterrupted.advance()
    found = list(uninterrupted.difference(state, own=own))
    summary = f"{len(found)} differences {found[:5]}" if found else f"{len(KINDS) + len(HELD)} kinds alike"
    sys.stdout.write(f"age {state.age.value} at step {step}: {summary}\n")
    sys.stdout.flush()


@contextmanager
def _random_state_kept() -> Iterator[None]:
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(kept[2])
