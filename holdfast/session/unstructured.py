"""Checkpoints without trees, of stock torch or a Holdfast before 0.2: the fresh state defines what is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.distributed.checkpoint._nested_dict import flatten_state_dict, unflatten_state_dict
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from holdfast.session.state import StateTree


def template(tree: StateTree) -> dict[str, Any]:
    """Return the items to load, by full name: tensors are filled in place."""
    return dict(flatten_state_dict(tree.nested())[0])


def load(tree: StateTree, loaded: Mapping[str, Any]) -> None:
    """Put values that were loaded into the objects.

    What :func:`template` names and ``loaded`` lacks is the state of parameters that had none: they have none then.
    """
    flat, paths = flatten_state_dict(tree.nested())
    nested = unflatten_state_dict({name: loaded[name] for name in flat if name in loaded}, paths)
    for name, module in tree.modules():
        set_model_state_dict(module.module, nested[name])
    for name, optimizer in tree.optimizers():
        held = nested[name]
        groups = [
            {**group, "params": own["params"]}
            for group, own in zip(held["param_groups"], tree.nested()[name]["param_groups"], strict=True)
        ]
        # torch takes a parameter without a state so far for one that is missing.
        set_optimizer_state_dict(
            optimizer.module,
            optimizer.optimizer,
            {**held, "param_groups": groups},
            options=StateDictOptions(strict=False),
        )
    for name, other in tree.others():
        other.give(nested[name])
    tree.forget()
