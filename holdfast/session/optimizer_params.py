"""The parameters of an optimizer: their order, and their full names in the modules that have them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import _get_fqns
from torch.optim import Optimizer

from holdfast.errors import ScriptRefusedError


def first_params(optimizer: Optimizer) -> set[int]:
    """Return the identities of each group's first parameter: of an optimizer and of one around it they are the same."""
    return {id(group["params"][0]) for group in optimizer.param_groups if group["params"]}


def in_order(optimizer: Optimizer) -> list[Tensor]:
    """Return its parameters, group by group."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def all_names(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Return the parameters of ``modules`` by full name; with the part's name before it, where there are several."""
    found: dict[str, Tensor] = {}
    for part, module in modules.items():
        for own, param in module.named_parameters():
            for name in _get_fqns(module, own):
                found[name if len(modules) == 1 else f"{part}.{name}"] = param
    return found


def full_names(name: str, params: list[Tensor], modules: Mapping[str, nn.Module]) -> dict[int, str]:
    """Return the full name of each parameter, by its identity."""
    known = {id(param): full for full, param in reversed(all_names(modules).items())}
    if any(id(each) not in known for each in params):
        raise ScriptRefusedError(
            f"state[{name!r}]: no module in the state dictionary has all of this optimizer's parameters. "
            "Add the model to it, for example {'model': model, 'optimizer': optimizer}; or, if a layer was replaced in "
            "the model, give its parameters to the optimizer."
        )
    return known
