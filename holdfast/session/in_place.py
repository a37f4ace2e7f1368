"""Modules and optimizers for which loading into the live tensors is all that a restore has to do.

``load_state_dict`` then only copies each tensor onto itself, which takes milliseconds at every restore. Objects that do
more than that (a hook, an override) are loaded through it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer


def loads_plainly(module: nn.Module) -> bool:
    """Return whether no part of ``module`` does anything at ``load_state_dict`` but copy."""
    return all(
        type(each).load_state_dict is nn.Module.load_state_dict
        and type(each)._load_from_state_dict is nn.Module._load_from_state_dict
        and type(each).set_extra_state is nn.Module.set_extra_state
        and not each._load_state_dict_pre_hooks
        and not each._load_state_dict_post_hooks
        for each in module.modules()
    )


def updates_plainly(optimizer: Optimizer) -> bool:
    """Return whether ``optimizer`` loads as torch's own do."""
    hooks = (optimizer._optimizer_load_state_dict_pre_hooks, optimizer._optimizer_load_state_dict_post_hooks)
    return type(optimizer).load_state_dict is Optimizer.load_state_dict and not any(hooks)


def saves_plainly(optimizer: Optimizer) -> bool:
    """Return whether the state dictionary of ``optimizer`` is its state and its groups alone, as of torch's own."""
    hooks = getattr(optimizer, "_optimizer_state_dict_post_hooks", None)
    return type(optimizer).state_dict is Optimizer.state_dict and not hooks


def set_groups(optimizer: Optimizer, groups: Sequence[Mapping[str, Any]]) -> None:
    """Give ``optimizer`` the options in ``groups``, as ``load_state_dict`` would; its state and parameters stay."""
    mine = [
        {name: group[name] for name in ("param_names",) if name in group}
        | {**options, "params": group["params"]}
        for group, options in zip(optimizer.param_groups, groups, strict=True)
    ]
    optimizer.__setstate__({"state": optimizer.state, "param_groups": mine})
