"""Trainings of many kinds at once that come back under another layout, from the ranks' shards and from S3.

Run in rank processes by ``test_layouts.py``. All ranks train on the same data, so that each layout computes the same.
"""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from holdfast.errors import CheckpointError
from holdfast.session import rng
from holdfast.session.agreement import Group
from holdfast.session.recovery import recover, recover_from_ranks
from holdfast.session.restore import restore_remote
from holdfast.session.shared import hashes_of, share_equal
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints.format.plan import make_plan
from holdfast.storage.checkpoints.remote.remote_reader import RemoteReader
from holdfast.storage.checkpoints.save import buffers
from holdfast.storage.checkpoints.save.writer import Owner, ShardWriter
from tests.session.kinds.compare import difference
from tests.session.kinds.layouts import kinds, laid_out, whole
from tests.session.kinds.test_trainings import contents
from tests.session.kinds.tiers import Bucket
from tests.session.kinds.training import Training
from tests.session.kinds.trainings import TRAININGS
from tests.session.small import seed
from tests.storage.checkpoints.publish import publish
from tests.storage.checkpoints.upload import upload

STEPS = 4
BY_NAME = {each.name: each for each in TRAININGS}
Cell = tuple[str, str, str]
"""The layout that saves, the one that loads, and the tier."""


class Together:
    """Several kinds in one state."""

    def __init__(self, some: Sequence[Training], layout: str) -> None:
        self.kinds, self.states = some, [laid_out(each, layout) for each in some]

    def tree(self) -> StateTree:
        """As it is given to the Session."""
        parts = {
            f"{number}-{name}": each
            for number, state in enumerate(self.states)
            for name, each in state.items()
        }
        return StateTree(parts, dist.get_rank(), dist.get_world_size())

    def step(self, step: int) -> list[float]:
        """Train everything by a step."""
        return [next_step(kind, state, step) for kind, state in zip(self.kinds, self.states, strict=True)]

    def held(self) -> list[Any]:
        """All that it consists of, put together. Collective."""
        return [whole(contents(state)) for state in self.states]


def save(some: Sequence[Training], layout: str, folder: Path) -> None:
    """Train and save, as ranks and agents do; note what is expected of a restore. Collective."""
    rank, size = dist.get_rank(), dist.get_world_size()
    seed(1)
    state = Together(some, layout)
    for step in range(1, STEPS + 1):
        state.step(step)
    held = state.held()
    tree, group = state.tree(), Group()
    group.open()
    share_equal(tree, hashes_of(tree, group), group)
    items = tree.flat() | rng.items(rank)
    private, paths = (rng.key(rank), *tree.private), tree.paths | rng.paths(rank)
    planned = make_plan(items, folder / "shards", 1, 1, private=private, paths=paths)
    writer = ShardWriter(planned.layout, Owner("gpt", 1, rank, size), folder / "shards")
    found = writer.collect(items)
    assert found is not None
    writer.save(found, STEPS)
    torch.save((held, state.step(STEPS + 1)), folder / f"expected-{rank}.pt")
    dist.barrier()
    if rank == 0:
        publish(folder / "shards", STEPS, folder / "s3")
    dist.barrier()


def load(some: Sequence[Training], layout: str, folder: Path, tier: str, saved_by: int) -> dict[str, str]:
    """Restore into fresh objects, compare bit for bit, and train on; what is wrong, by kind. Collective."""
    rank = dist.get_rank()
    seed(90)
    state = Together(some, layout)
    if failed := everywhere(lambda: restore(state.tree(), folder, tier, saved_by)):
        return dict.fromkeys([each.name for each in some], failed)
    mine = rank if saved_by == dist.get_world_size() else 0
    expected, losses = torch.load(folder / f"expected-{mine}.pt", weights_only=False)
    wrong = {}
    for kind, before, now in zip(some, expected, state.held(), strict=True):
        wrong[kind.name] = everywhere(lambda before=before, now=now: difference(before, now))
    for kind, one, loss in zip(some, state.states, losses, strict=True):
        wrong[kind.name] = wrong[kind.name] or everywhere(
            lambda kind=kind, one=one, loss=loss: _on(kind, one, loss)
        )
    return {name: each for name, each in wrong.items() if each}


def next_step(kind: Training, state: Any, step: int) -> float:
    """Train one kind, whatever the others did."""
    seed(step)
    return kind.step(state, step)


def _on(kind: Training, state: Any, expected: float) -> str:
    found = next_step(kind, state, STEPS + 1)
    near = abs(found - expected) <= 1e-4 * max(1.0, abs(expected))
    return "" if near else f"the next loss is {found}, expected {expected}"


def restore(tree: StateTree, folder: Path, tier: str, saved_by: int) -> None:
    """Restore from S3, or from the ranks' shards. Collective."""
    rank, size = dist.get_rank(), dist.get_world_size()
    paths = {each.rank: path for path, each in buffers.inventory(folder / "shards") if each.step == STEPS}
    if tier == "s3":
        bucket: Any = Bucket()
        uploaded = upload(bucket, folder / "s3", step=STEPS, world_size=saved_by)
        restore_remote(tree, RemoteReader(bucket, uploaded.key, job="gpt", step=STEPS), rank)
    elif saved_by == size:
        recover(tree, rank, paths[rank])
    else:
        recover_from_ranks(tree, rank, [paths[each] for each in range(saved_by) if each % size == rank])


def everywhere(act: Callable[[], str | None]) -> str:
    """The text that ``act`` returns or raises on any rank. Collective."""
    try:
        outcome = act() or ""
    except CheckpointError as error:
        outcome = f"refused: {error}"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}{''.join(traceback.format_tb(error.__traceback__)[-3:])}"
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, outcome)
    return next((f"rank {rank}: {each}" for rank, each in enumerate(found) if each), "")


def cells(folder: Path, wanted: list[Cell], names: list[str] | None = None) -> dict[str, str]:
    """Differences from the expected result, by cell and kind; ``names``: of these kinds alone. Collective."""
    warnings.simplefilter("ignore")
    found = {}
    for number, (saved, loaded, tier) in enumerate(wanted):
        exact, refused = kinds(saved, loaded)
        exact = [each for each in exact if names is None or each.name in names]
        save(exact, saved, folder / f"{number}")
        wrong = load(exact, loaded, folder / f"{number}", tier, dist.get_world_size())
        for at, name in enumerate(each for each in refused if names is None or each in names):
            save([BY_NAME[name]], saved, folder / f"{number}-{at}")
            wrong |= _not_refused(name, refused[name], loaded, folder / f"{number}-{at}", tier)
        found |= {f"{saved} -> {loaded} from {tier}, {name}": each for name, each in wrong.items()}
    return found


def saved_for_others(folder: Path, layout: str, loaded: str, names: list[str]) -> None:
    """Save what another number of ranks loads: those to be refused each by itself. Collective."""
    warnings.simplefilter("ignore")
    exact, refused = kinds(layout, loaded, same_size=False)
    save([each for each in exact if each.name in names], layout, folder / "exact")
    for name in (each for each in refused if each in names):
        save([BY_NAME[name]], layout, folder / name)


def loaded_from_others(
    folder: Path, saved: str, layout: str, names: list[str], *, tier: str, by: int
) -> dict[str, str]:
    """Load what ``by`` ranks saved, another number of them; what was not as expected, by kind. Collective."""
    warnings.simplefilter("ignore")
    exact, refused = kinds(saved, layout, same_size=False)
    wrong = load([each for each in exact if each.name in names], layout, folder / "exact", tier, by)
    for name in (each for each in refused if each in names):
        wrong |= _not_refused(name, refused[name], layout, folder / name, tier, by=by)
    return wrong


def _not_refused(
    name: str, expected: str, layout: str, folder: Path, tier: str, *, by: int | None = None
) -> dict[str, str]:
    outcome = load([BY_NAME[name]], layout, folder, tier, by or dist.get_world_size()).get(
        name, "nothing is wrong"
    )
    return {} if re.search(f"refused: .*{expected}", outcome) else {name: f"expected {expected}: {outcome}"}
