"""The state given to ``checkpoint`` and ``restore``, as flat named items.

Modules and their optimizers go through ``torch.distributed.checkpoint.state_dict``: parameters under their
full names (DDP's prefix stripped), optimizer state under the names of its parameters, shards as DTensors.
Anything else must be a ``Stateful``. Building those dictionaries takes milliseconds, so they are kept as long
as a look at the live tensors shows that they are still the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from holdfast.errors import CheckpointError
from holdfast.session.in_place import loads_plainly, set_groups, updates_plainly


class StateTree:
    """Reads and loads one ``state`` dictionary (name to module, optimizer or other ``Stateful``)."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.state = dict(state)
        self._modules = {name: each for name, each in state.items() if isinstance(each, nn.Module)}
        optimizers = {
            name: _single(name, each) for name, each in state.items() if isinstance(each, Optimizer)
        }
        self._pairs = {name: (self._owner(name, each), each) for name, each in optimizers.items()}
        paired = self._modules.keys() | self._pairs.keys()
        self._others = {name: _stateful(name, each) for name, each in state.items() if name not in paired}
        self._flat: dict[str, Any] = {}
        self._seen: list[int] | None = None
        self._updated: frozenset[int] | None = None
        self._own_params: dict[str, list[Any]] = {}

    def same(self, state: Mapping[str, Any]) -> bool:
        """True when ``state`` holds the very objects that this tree was made of."""
        return state.keys() == self.state.keys() and all(
            self.state[name] is each for name, each in state.items()
        )

    def _owner(self, name: str, optimizer: Optimizer) -> nn.Module:
        mine = {id(each) for group in optimizer.param_groups for each in group["params"]}
        for module in self._modules.values():
            if mine <= {id(each) for each in module.parameters()}:
                return module
        raise CheckpointError(
            f"state[{name!r}]: no module in the state dictionary has all of this optimizer's parameters. "
            "Add the model to it, for example {'model': model, 'optimizer': optimizer}."
        )

    def nested(self) -> dict[str, Any]:
        """Everything, as nested dictionaries whose tensors are the live ones."""
        nested: dict[str, Any] = {name: get_model_state_dict(each) for name, each in self._modules.items()}
        for name, (module, optimizer) in self._pairs.items():
            nested[name] = get_optimizer_state_dict(module, optimizer)
            groups: Any = nested[name]["param_groups"]
            self._own_params[name] = [list(group["params"]) for group in groups]
        nested |= {name: each.state_dict() for name, each in self._others.items()}
        return nested

    def flat(self) -> dict[str, Any]:
        """Everything, by full name; the quick way while no tensor was replaced."""
        seen = self._look()
        if self._seen is None or seen != self._seen:
            self._updated = None
            self._keep(self.nested())
        self._refresh_groups()
        others = flatten_state_dict({name: each.state_dict() for name, each in self._others.items()})[0]
        return self._flat | others

    def _keep(self, nested: Mapping[str, Any]) -> None:
        """Remember the flat items, for as long as the live tensors are those that they hold."""
        self._flat = flatten_state_dict({name: nested[name] for name in (*self._modules, *self._pairs)})[0]
        # Optimizers make their state at the first look, and hooks may hand out copies.
        seen = self._look()
        self._seen = seen if self._is_live(seen) else None

    def updated(self) -> frozenset[int]:
        """Addresses of the tensors that only an optimizer of this state changes."""
        if self._updated is None:
            self._updated = frozenset(
                _address(each)
                for _, optimizer in self._pairs.values()
                for each in (
                    *(each for group in optimizer.param_groups for each in group["params"]),
                    *(each for state in optimizer.state.values() for each in state.values()),
                )
                if isinstance(each, Tensor)
            )
        return self._updated

    def expected_nbytes(self) -> int:
        """About the bytes of this rank's tensors once training has begun.

        Optimizers make their state at their first step; before, it is counted as torch's own make it.
        """
        modules = [
            each for module in self._modules.values() for each in (*module.parameters(), *module.buffers())
        ]
        found = {_address(each): _nbytes(each) for each in modules}
        return sum(found.values()) + sum(
            _optimizer_nbytes(optimizer) for _, optimizer in self._pairs.values()
        )

    def is_other(self, name: str) -> bool:
        """Whether an item, by full name, is neither a module's nor an optimizer's."""
        return any(name == other or name.startswith(f"{other}.") for other in self._others)

    def load(self, nested: Mapping[str, Any]) -> None:
        """Put values that were loaded into :meth:`nested` dictionaries into the objects."""
        live = set(self._look())
        in_place = True
        for name, module in self._modules.items():
            if not (loads_plainly(module) and _all_live(nested[name], live)):
                set_model_state_dict(module, nested[name])
                in_place = False
        for name, (module, optimizer) in self._pairs.items():
            groups = self._own_groups(name, nested[name])
            if updates_plainly(optimizer) and _all_live(groups["state"], live):
                set_groups(optimizer, groups["param_groups"])
            else:
                set_optimizer_state_dict(module, optimizer, groups)
                in_place = False
        for name, other in self._others.items():
            other.load_state_dict(nested[name])
        self._seen = self._updated = None
        if in_place:
            # What was loaded into are the live tensors: the first save need not look for them again.
            self._keep(nested)

    def settle(self) -> None:
        """Let loaders make their iterators, as they do when their state is asked for.

        Making one draws a random number, which must be drawn before the random state is restored and not after it.
        """
        for other in self._others.values():
            other.state_dict()

    def _own_groups(self, name: str, loaded: dict[str, Any]) -> dict[str, Any]:
        """Parameter groups with this rank's own parameters: those of another pipeline stage were saved under the
        same name, with the same options."""
        groups = [
            {**group, "params": params}
            for group, params in zip(loaded["param_groups"], self._own_params[name], strict=True)
        ]
        return {**loaded, "param_groups": groups}

    def _look(self) -> list[int]:
        """Addresses of all live tensors."""
        return [_address(each) for each in self._live()]

    def _live(self) -> Iterator[Tensor]:
        for module in self._modules.values():
            yield from module.parameters()
            yield from module.buffers()
        for _, optimizer in self._pairs.values():
            for state in optimizer.state.values():
                yield from (each for each in state.values() if isinstance(each, Tensor))
            for group in optimizer.param_groups:
                yield from (each for each in group.values() if isinstance(each, Tensor))

    def _is_live(self, seen: list[int]) -> bool:
        """True when every kept item is a live tensor or an option of a parameter group."""
        live = set(seen)
        groups = tuple(f"{name}.param_groups." for name in self._pairs)
        return all(
            _address(each) in live or each.numel() == 0
            if isinstance(each, Tensor)
            else bool(groups) and name.startswith(groups)
            for name, each in self._flat.items()
        )

    def _refresh_groups(self) -> None:
        """Options such as the learning rate are plain numbers that schedulers replace."""
        for name, (_, optimizer) in self._pairs.items():
            for number, group in enumerate(optimizer.param_groups):
                prefix = f"{name}.param_groups.{number}."
                for option, value in group.items():
                    if option != "params" and prefix + option in self._flat:
                        self._flat[prefix + option] = value


def _all_live(loaded: Mapping[str, Any], live: set[int]) -> bool:
    """Whether ``loaded``, nested, is nothing but live tensors: then its values are where they belong."""
    return all(
        _all_live(each, live)
        if isinstance(each, Mapping)
        else isinstance(each, Tensor) and (_address(each) in live or each.numel() == 0)
        for each in loaded.values()
    )


_TENSORS_LIKE_PARAMETER = {
    "Adadelta": 2,
    "Adagrad": 1,
    "Adam": 2,
    "AdamW": 2,
    "Adamax": 2,
    "ASGD": 1,
    "Muon": 1,
    "NAdam": 2,
    "RAdam": 2,
    "RMSprop": 1,
    "Rprop": 2,
}


def _optimizer_nbytes(optimizer: Optimizer) -> int:
    if optimizer.state:
        held = (each for state in optimizer.state.values() for each in state.values())
        return sum(_nbytes(each) for each in held if isinstance(each, Tensor))
    nbytes = 0
    for group in optimizer.param_groups:
        like = _TENSORS_LIKE_PARAMETER.get(type(optimizer).__name__, 0)
        like += (
            bool(group.get("amsgrad"))
            + bool(group.get("momentum")) * (like < 2)
            + bool(group.get("centered"))
        )
        nbytes += like * sum(_nbytes(each) for each in group["params"] if each.requires_grad)
    return nbytes


def _nbytes(tensor: Tensor) -> int:
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.numel() * local.element_size()


def _address(tensor: Tensor) -> int:
    # A DTensor's own address is not that of its local shard.
    return getattr(tensor, "_local_tensor", tensor).data_ptr()


def _single(name: str, optimizer: Optimizer) -> Optimizer:
    """The optimizer, unless it is a container of others: torch would look for its state in the container itself."""
    inside = getattr(optimizer, "optimizers", None)
    if isinstance(inside, list | tuple) and any(isinstance(each, Optimizer) for each in inside):
        raise CheckpointError(
            f"state[{name!r}] is a {type(optimizer).__name__} of {len(inside)} optimizers: expected the optimizers "
            "themselves. holdfast.integrations.torchtitan.unwrapped(states) puts them in its place."
        )
    return optimizer


def _stateful(name: str, value: object) -> Stateful:
    if isinstance(value, Stateful):
        return value
    raise CheckpointError(
        f"state[{name!r}] is a {type(value).__name__}: expected a torch module, an optimizer, or an object "
        "with state_dict() and load_state_dict()."
    )
