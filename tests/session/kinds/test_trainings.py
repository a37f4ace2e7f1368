"""Every optimizer, scheduler and kind of module goes on exactly as if nothing had happened, twice in a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.errors import CheckpointError
from tests.session.kinds.compare import difference
from tests.session.kinds.optimizers import OPTIMIZERS, Around, OfItsPart
from tests.session.kinds.schedulers import SCHEDULERS
from tests.session.kinds.tiers import Site, site
from tests.session.kinds.training import Training, net, train
from tests.session.kinds.trainings import TRAININGS
from tests.session.small import seed

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")]


def contents(state: dict[str, Any]) -> dict[str, Any]:
    """All that a state consists of, as plain nested values."""
    return {name: _inside(each) for name, each in state.items()}


def _inside(part: Any) -> Any:
    if isinstance(part, nn.Module):
        flags = {name: each.requires_grad for name, each in part.named_parameters()}
        return dict(part.state_dict()), flags
    if isinstance(part, Optimizer):
        params = [each for group in part.param_groups for each in group["params"]]
        groups = [
            {key: each for key, each in group.items() if key != "params"} | {"n": len(group["params"])}
            for group in part.param_groups
        ]
        kept = part.kept if isinstance(part, OfItsPart) else lambda each: dict(part.state[each])
        return [kept(each) if each in part.state else None for each in params], groups
    return part.state_dict()


def _run(place: Site, session: Any, kind: Training, state: Any, steps: range) -> list[float]:
    losses = []
    for step in steps:
        losses.append(kind.step(state, step))
        place.save(session, state, step)
    return losses


@pytest.mark.parametrize("tier", ["memory", pytest.param("s3", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", TRAININGS, ids=lambda each: each.name)
def test_a_training_goes_on_exactly(kind: Training, tier: str, tmp_path: Path) -> None:
    """Killed after steps 1, 3 and 5, from fresh objects of other random values: all values and losses agree."""
    seed(1)
    whole = kind.make()
    expected = [kind.step(whole, step) for step in range(1, 8)]
    with site(tmp_path) as place:
        seed(1)
        state = kind.make()
        losses = _run(place, place.begin(state), kind, state, range(1, 2))
        for first, last in ((2, 4), (4, 6), (6, 8)):
            seed(90 + first)
            state = kind.make()
            session = place.restore(tier, first - 1, state)
            losses += _run(place, session, kind, state, range(first, last))
    assert losses == expected
    assert not difference(contents(whole), contents(state))


@pytest.mark.parametrize("compiled", [(True, False), (False, True)], ids=["before", "after"])
def test_a_model_may_be_compiled_on_one_side_only(compiled: tuple[bool, bool], tmp_path: Path) -> None:
    """Names in a checkpoint are those of the model itself."""

    def made(number: int, *, compiled: bool) -> dict[str, Any]:
        seed(number)
        model: Any = torch.compile(net(), backend="eager") if compiled else net()
        return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}

    with site(tmp_path) as place:
        state = made(1, compiled=compiled[0])
        session = place.begin(state)
        for step in (1, 2):
            train(state, step)
            place.save(session, state, step)
        again = made(90, compiled=compiled[1])
        place.restore("memory", 2, again)
        assert train(again, 3) == train_alone(made(1, compiled=False))


def train_alone(state: dict[str, Any]) -> float:
    """The loss of the third step without a fault."""
    return [train(state, step) for step in (1, 2, 3)][-1]


def test_lazy_modules_are_refused_at_the_start(tmp_path: Path) -> None:
    """Before the first forward pass nothing could be restored into them: the message names the remedy."""
    model = nn.Sequential(nn.LazyLinear(3))
    with (
        site(tmp_path) as place,
        pytest.raises(CheckpointError, match=r"'model.0.weight'.*forward pass before"),
    ):
        place.begin({"model": model})


def test_an_optimizer_around_one_that_is_not_given_is_refused(tmp_path: Path) -> None:
    """The moments would be lost: they are in the inner one's state alone."""
    model = net()
    state = {"model": model, "optimizer": Around(model.parameters())}
    with site(tmp_path) as place:
        session = place.begin(state)
        train(state, 1)
        with pytest.raises(
            CheckpointError, match=r"'optimizer.inner': an optimizer \(Adam\) inside of the Around"
        ):
            place.save(session, state, 1)


def test_every_optimizer_of_torch_is_among_the_kinds() -> None:
    """A new one in torch must be put into the table."""
    made = {name.split(",")[0].split(" ")[0] for name in OPTIMIZERS} | {"Muon", "SparseAdam"}
    theirs = {
        each.__name__
        for each in vars(torch.optim).values()
        if isinstance(each, type) and issubclass(each, Optimizer) and each is not Optimizer
    }
    assert theirs - made - {"AdamW"} == set()


def test_every_scheduler_of_torch_is_among_the_kinds() -> None:
    """A new one in torch must be put into the table."""
    theirs = {name for name in torch.optim.lr_scheduler.__all__ if name != "LRScheduler"}
    assert theirs - {name.split(",")[0] for name in SCHEDULERS} == set()
