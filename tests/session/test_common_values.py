"""Plain values of optimizers at another number of ranks: taken where all ranks had the same, else refused by path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.errors import CheckpointError
from holdfast.session import common_values
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints.load.exchange import Exchange


class Scaled(torch.optim.SGD):
    """Keeps ``of_rank`` beside each parameter."""

    def __init__(self, params: Any, of_rank: Any, **options: Any) -> None:
        super().__init__(params, lr=0.1)
        self.param_groups[0].update(options)
        for param in self.param_groups[0]["params"]:
            self.state[param]["scale"] = of_rank


def saved(by_rank: list[Any], **rules: Any) -> tuple[StateTree, dict[str, Any]]:
    """States that ranks with these optimizers saved, of one model; the last one's tree."""
    flat: dict[str, Any] = {}
    for rank, make in enumerate(by_rank):
        torch.manual_seed(0)
        model = nn.Linear(2, 3)
        part = holdfast.Part(make(model), **rules)
        tree = StateTree({"model": model, "optimizer": part}, rank, len(by_rank))
        flat |= tree.flat()
    return tree, flat


def require_common(by_rank: list[Any], **rules: Any) -> None:
    """As a single rank asks that loads what these saved."""
    tree, flat = saved(by_rank, **rules)
    names = tree.strict_optimizers()
    found = common_values.trees_of(names, range(len(by_rank)), flat)
    common_values.require_common(names, {each: flat[each] for each in found}, Exchange(alone=True))


def by(*values: Any) -> list[Any]:
    return [lambda model, value=value: Scaled(model.parameters(), value) for value in values]


@pytest.mark.parametrize(
    "values",
    [
        (0.5, 0.5, 0.5),
        (float("nan"), float("nan")),
        ((1, "text", None), (1, "text", None)),
        ({"a": [1, 2.5]}, {"a": [1, 2.5]}),
        (torch.ones(3), torch.zeros(3)),  # elements are taken by their place, or refused elsewhere
    ],
    ids=str,
)
def test_equal_values_are_taken(values: tuple[Any, ...]) -> None:
    require_common(by(*values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0.5, 0.25), r"optimizer\.state\.weight\.scale: .*\(0\.5 on rank 0, 0\.25 on rank 1\)"),
        ((1, 1, 1, 2), r"optimizer\.state\.weight\.scale: .*\(1 on rank 0, 2 on rank 3\)"),
        ((0.0, -0.0), r"\(0\.0 on rank 0, -0\.0 on rank 1\)"),
        ((1, 1.0), r"\(1 on rank 0, 1\.0 on rank 1\)"),
        ((1, True), r"\(1 on rank 0, True on rank 1\)"),
        (({"a": [1, (2.5, "x")]}, {"a": [1, (3.5, "x")]}), r"weight\.scale\.a\.1\.0: .*2\.5 on rank 0, 3\.5"),
        (({"a": {2: 1.5, "b": torch.ones(1)}}, {"a": {2: 2.5, "b": torch.ones(1)}}), r"1\.5 on rank 0, 2\.5"),
    ],
    ids=str,
)
def test_a_value_that_differs_is_refused_by_its_path(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        require_common(by(*values))
    assert "strict=False" in str(caught.value)


def test_options_of_a_group_count() -> None:
    """As the ``d`` of Prodigy, where it was not summed over the ranks."""
    with pytest.raises(
        CheckpointError, match=r"optimizer\.param_groups\.0\.d: .*\(0\.1 on rank 0, 0\.2 on rank 1\)"
    ):
        require_common([lambda model, d=d: Scaled(model.parameters(), 1, d=d) for d in (0.1, 0.2)])


def test_a_parameter_without_state_on_one_rank_is_no_difference() -> None:
    def none(model: nn.Module) -> Scaled:
        made = Scaled(model.parameters(), 7)
        del made.state[model.weight]
        return made

    require_common([none, *by(7)])


def test_stages_have_values_of_their_own() -> None:
    """Ranks whose optimizers have other parameters."""
    require_common(
        [
            lambda model: Scaled([model.weight], 1, d=0.1),
            lambda model: Scaled([model.bias], 2, d=0.2),
        ]
    )


def test_a_person_may_take_that_of_one_rank() -> None:
    require_common(by(0.5, 0.25), strict=False)
