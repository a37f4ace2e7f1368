"""Quick check whether a module or an optimizer holds the tensors that it held when its state was last encoded."""

from __future__ import annotations

import pickle
from itertools import chain
from operator import attrgetter, methodcaller
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.storage.checkpoints.save.glance import Glance, identical

_NUMBERS = (int, float, bool, str, type(None))


class ModuleWatch:
    """A module's tensors, under their names, as they were."""

    def __init__(self, module: nn.Module) -> None:
        """Remember ``module``."""
        self._owners = list(module.modules())
        self._known = not any(isinstance(each, torch.jit.ScriptModule) for each in self._owners)
        if self._known:
            self._dicts = _dicts_of(self._owners)
            self._names, self._held, self._hidden = self._read()
            self._tensors = [each for each in self._held if isinstance(each, Tensor)]
            self._glance = Glance(self._tensors)

    def same(self) -> bool:
        """Return whether all names and tensors are what they were; only elements may differ."""
        if not (self._known and identical(_dicts_of(self._owners), self._dicts)):
            return False
        names, held, hidden = self._read()
        return (
            names == self._names
            and hidden == self._hidden
            and identical(held, self._held)
            and self._glance.same(self._tensors)
        )

    def _read(self) -> tuple[list[str], list[Any], list[int]]:
        """Return names and values of all that its parts hold; parts too, so that these are known to be the same."""
        names = list(chain.from_iterable(self._dicts))
        values = list(chain.from_iterable(map(_values, self._dicts)))
        return names, values, list(map(len, map(_hidden, self._owners)))


_DICTS = tuple(map(attrgetter, ("_parameters", "_buffers", "_modules")))
_hidden = attrgetter("_non_persistent_buffers_set")
_values = methodcaller("values")


def _dicts_of(owners: list[nn.Module]) -> list[dict[str, Any]]:
    """Return where parts of a module keep what they hold."""
    return [each for kind in _DICTS for each in map(kind, owners)]


class StateWatch:
    """An optimizer's parameters and what it keeps for each, as they were."""

    def __init__(self, optimizer: Optimizer) -> None:
        """Remember what ``optimizer`` holds."""
        self._optimizer = optimizer
        self._known = all(
            type(values) is dict and all(isinstance(each, Tensor) for each in values.values())
            for values in optimizer.state.values()
        )
        if self._known:
            self._names, params, kept = self._read()
            self._params, self._kept = Glance(params), Glance(kept)

    def same(self, *, params_seen: bool = False) -> bool:
        """Return whether parameters and state are the same tensors; only elements may differ.

        Args:
            params_seen: whether it is known that every parameter that was there lies where it lay.
        """
        if not self._known:
            return False
        try:
            names, params, kept = self._read()
        except (TypeError, AttributeError):
            return False
        same_params = self._params.holds(params) if params_seen else self._params.same(params)
        return same_params and names == self._names and self._kept.same(kept)

    def _read(self) -> tuple[list[Any], list[Tensor], list[Tensor]]:
        state = self._optimizer.state
        params = [each for group in self._optimizer.param_groups for each in group["params"]]
        names = [*map(id, state), *chain.from_iterable(state.values())]
        return names, params, [*chain.from_iterable(map(_values, state.values()))]


def plain_options(groups: list[dict[str, Any]]) -> bytes | None:
    """Return the options of parameter groups, to be compared; None when there are others than numbers and strings."""
    options = [[each for each in group.items() if each[0] != "params"] for group in groups]
    if all(_is_plain(value) for group in options for _, value in group):
        return pickle.dumps(options)
    return None


def _is_plain(value: object) -> bool:
    return type(value) in _NUMBERS or (type(value) is tuple and all(type(each) in _NUMBERS for each in value))
