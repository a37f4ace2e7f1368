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


class StateTree:
    """Reads and loads one ``state`` dictionary (name to module, optimizer or other ``Stateful``)."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.state = dict(state)
        self._modules = {name: each for name, each in state.items() if isinstance(each, nn.Module)}
        optimizers = {name: each for name, each in state.items() if isinstance(each, Optimizer)}
        self._pairs = {name: (self._owner(name, each), each) for name, each in optimizers.items()}
        paired = self._modules.keys() | self._pairs.keys()
        self._others = {name: _stateful(name, each) for name, each in state.items() if name not in paired}
        self._flat: dict[str, Any] = {}
        self._seen: list[int] | None = None

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
        nested |= {name: each.state_dict() for name, each in self._others.items()}
        return nested

    def flat(self) -> dict[str, Any]:
        """Everything, by full name; the quick way while no tensor was replaced."""
        seen = self._look()
        if self._seen is None or seen != self._seen:
            nested = self.nested()
            self._flat = flatten_state_dict({name: nested[name] for name in (*self._modules, *self._pairs)})[
                0
            ]
            # Optimizers make their state at the first look, and hooks may hand out copies.
            seen = self._look()
            self._seen = seen if self._is_live(seen) else None
        self._refresh_groups()
        others = flatten_state_dict({name: each.state_dict() for name, each in self._others.items()})[0]
        return self._flat | others

    def load(self, nested: Mapping[str, Any]) -> None:
        """Put loaded values into the objects."""
        for name, module in self._modules.items():
            set_model_state_dict(module, nested[name])
        for name, (module, optimizer) in self._pairs.items():
            set_optimizer_state_dict(module, optimizer, nested[name])
        for name, other in self._others.items():
            other.load_state_dict(nested[name])
        self._seen = None

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


def _address(tensor: Tensor) -> int:
    # A DTensor's own address is not that of its local shard.
    return getattr(tensor, "_local_tensor", tensor).data_ptr()


def _stateful(name: str, value: object) -> Stateful:
    if isinstance(value, Stateful):
        return value
    raise CheckpointError(
        f"state[{name!r}] is a {type(value).__name__}: expected a torch module, an optimizer, or an object "
        "with state_dict() and load_state_dict()."
    )
