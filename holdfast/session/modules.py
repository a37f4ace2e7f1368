"""Modules in a state: their parameters and buffers under their full names, and all other state that they keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    _get_fqns,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.nn.parameter import UninitializedParameter, is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from holdfast.errors import CheckpointError, UncoveredError
from holdfast.session.encoded import Encoded, Placing, addresses, local
from holdfast.session.in_place import loads_plainly
from holdfast.session.known import Known, fits
from holdfast.session.part import Part
from holdfast.session.state_watch import ModuleWatch
from holdfast.storage.checkpoints.format.decoder import decode
from holdfast.storage.checkpoints.format.encoder import Encoder
from holdfast.storage.checkpoints.format.places import refused
from holdfast.storage.checkpoints.format.raw_tensors import is_plain
from holdfast.storage.checkpoints.format.structure import Node, plain_name, refs
from holdfast.storage.checkpoints.format.tensor_facts import is_distributed


class ModulePart:
    """One module of the state."""

    def __init__(self, name: str, part: Part) -> None:
        self.name, self.module, self._strict = name, part.value, part.strict
        self._cached: Encoded | None = None
        self._watch: ModuleWatch | None = None
        self._hooks: list[tuple[nn.Module, str, Any]] = []
        self._replaced = False
        self._nones: list[str] = []
        self.thaws = True
        """Whether a load makes parameters frozen or not, as they were saved."""
        self.elsewhere: set[str] = set()
        """Names that this rank did not save, and loads: which of them are frozen is in the trees of other ranks."""
        self._require_initialised()

    def _require_initialised(self) -> None:
        for name, each in (*self.module.named_parameters(), *self.module.named_buffers()):
            if is_lazy(each):
                raise refused(
                    (self.name, name),
                    "it is not initialised yet",
                    "run a forward pass before Session.restore()",
                )

    def state(self) -> dict[str, Any]:
        """Return its tensors, the live ones where the module has them, by full name.

        Raises:
            CheckpointError: torch cannot make its state dictionary.
        """
        try:
            return dict(get_model_state_dict(self.module))
        except (RuntimeError, ValueError, KeyError, AssertionError, NotImplementedError) as error:
            raise CheckpointError(
                f"state {self.name!r}: torch cannot make its state dictionary: {error}"
            ) from error

    def tensors(self) -> Iterator[Tensor]:
        """Yield all live tensors."""
        yield from self.module.parameters()
        yield from self.module.buffers()

    def buffers(self) -> dict[str, Tensor]:
        """Return plain buffers that are saved, by full name."""
        found = {
            f"{self.name}.{full}": each
            for prefix, owner in self.module.named_modules(remove_duplicate=False)
            for own, each in owner._buffers.items()
            if each is not None and own not in owner._non_persistent_buffers_set and is_plain(each)
            for full in _names(self.module, f"{prefix}.{own}" if prefix else own)
        }
        return {
            name: each
            for name, each in found.items()
            if not (is_distributed(each) or is_traceable_wrapper_subclass(each))
        }

    def encode(self, placing: Placing) -> Encoded:
        """Return the items to save; the quick way while no tensor was replaced."""
        for owner, prefix, hook in self._hooks if self._cached is not None else ():
            hook(owner, prefix, False)
        if self._cached is None or self._watch is None or not self._watch.same():
            encoder = Encoder(placing.module(), placing.rank)
            values = self.state()
            nodes = {key: encoder.part_of(value, (self.name, key)) for key, value in values.items()}
            made = Encoded.by(
                encoder, {self.name: {"state": nodes, "frozen": self._frozen(), "none": self._none()}}
            )
            if made.inlined or not self._all_live(values):
                self._cached = None
                return made
            self._cached, self._watch, self._hooks = made, ModuleWatch(self.module), _hooks(self.module)
        return self._cached

    def forget(self) -> None:
        """Look at the module again."""
        self._cached = None

    def _frozen(self) -> list[str]:
        return sorted(
            name
            for own, each in self.module.named_parameters()
            if not each.requires_grad
            for name in _get_fqns(self.module, own)
        )

    def _none(self) -> list[str]:
        """Return buffers that are saved and are None now."""
        return sorted(
            full
            for prefix, owner in self.module.named_modules(remove_duplicate=False)
            for name, each in owner._buffers.items()
            if each is None and name not in owner._non_persistent_buffers_set
            for full in _names(self.module, f"{prefix}.{name}" if prefix else name)
        )

    def _all_live(self, values: Mapping[str, Any]) -> bool:
        """Return whether all of it are live tensors, so that looking at these shows whether anything changed."""
        live = {address for tensor in self.tensors() for address, _ in addresses(tensor)}
        return all(
            isinstance(each, Tensor) and all(at in live or not count for at, count in addresses(each))
            for each in values.values()
        )

    def want(self, known: Known) -> None:
        """Make room for what the checkpoint holds of the module.

        Raises:
            CheckpointError: it does not fit this module.
        """
        saved = known.nodes.get(self.name) or {"state": {}, "frozen": []}
        self._nodes: dict[str, Node] = dict(saved["state"])
        self._fresh = self.state()
        self._homes: dict[str, tuple[nn.Module, str]] | None = None
        self._replaced = False
        self._nones = [key for key in saved.get("none", ()) if key in self._fresh and self._home(key)]
        self.elsewhere = self._fresh.keys() - self._nodes.keys() - set(self._nones)
        for key in self.elsewhere:
            self._from_others(key, known)
        # Before any is made: the same buffer may have several names.
        self._open = {key for key in self._nodes.keys() - self._fresh.keys() if self._is_open(key)}
        for key, node in list(self._nodes.items()):
            self._want(key, node, known)
        self._frozen_then: list[str] = saved["frozen"]

    def freeze(self, names: Set[str]) -> None:
        """Take the frozen ones among those that other ranks saved; after :meth:`want`."""
        self._frozen_then = sorted({*self._frozen_then, *(names & self.elsewhere)})

    def _from_others(self, key: str, known: Known) -> None:
        """Find a name that this rank did not save: another pipeline stage may have."""
        name = f"{self.name}.{key}"
        if known.has(name):
            self._nodes[key] = "@ref", name, local(self._fresh[key]).device.type, None
        elif self._strict:
            raise UncoveredError(
                f"{name}: the model has it, and the checkpoint does not. Restore with the code that saved it, or give "
                f"holdfast.Part(..., strict=False) for {self.name!r} to leave it as it is"
            )

    def _want(self, key: str, node: Node, known: Known) -> None:
        fresh = self._fresh.get(key)
        if key not in self._fresh and key not in self._open:
            if key not in known.nodes.get(self.name, {}).get("state", {}):
                return
            self._leave_out(key, node, known)
            return
        if isinstance(node, tuple) and node[0] == "@ref":
            known.targets[node[1]] = self._fitting(key, fresh, node, known)
        elif isinstance(node, tuple) and node[0] == "@subclass" and _same_inside(fresh, node):
            for name, inner in node[3].items():
                known.want(inner, held=getattr(fresh, name))
        else:
            if isinstance(node, tuple) and node[0] == "@raw":
                self._require_size(key, torch.Size(node[4]), f"torch.{node[3]}")
            known.want(node, like=fresh)

    def _require_size(self, key: str, size: torch.Size, dtype: object) -> None:
        """Refuse elements of a parameter that has another size now, before anything is copied."""
        home = self._home(key)
        param = home[0]._parameters.get(home[1]) if home is not None else None
        if param is not None and param.shape != size:
            raise self._other_than(key, size, dtype, param)

    def _other_than(self, key: str, size: torch.Size, dtype: object, param: Tensor | None) -> CheckpointError:
        found = "none" if param is None else f"one {list(param.shape)} of {param.dtype}"
        return CheckpointError(
            f"{self.name}.{key}: the checkpoint has a tensor {list(size)} of {dtype}, the model {found}. "
            "Restore with the code that saved it"
        )

    def _leave_out(self, key: str, node: Node, known: Known) -> None:
        """Leave out a name that the module does not have."""
        del self._nodes[key]
        if not self._strict:
            return
        if not known.own:
            # A buffer of this rank's own is not missed where another takes that of the plain name.
            known.left |= {plain_name(name) for name, _, _ in refs(node)}
            return
        raise UncoveredError(
            f"{self.name}.{key}: the checkpoint has it, and the model does not. Restore with the code that saved it, "
            f"or give holdfast.Part(..., strict=False) for {self.name!r} to leave it out"
        )

    def _home(self, key: str) -> tuple[nn.Module, str] | None:
        if self._homes is None:
            self._homes = {
                full: (owner, name)
                for prefix, owner in self.module.named_modules(remove_duplicate=False)
                for name in (*owner._parameters, *owner._buffers)
                for full in _names(self.module, f"{prefix}.{name}" if prefix else name)
            }
        return self._homes.get(key)

    def _is_open(self, key: str) -> bool:
        """Return whether the module has a buffer or parameter of this name that is None so far."""
        home = self._home(key)
        return home is not None and (home[0]._buffers.get(home[1], 0) is None)

    def _fitting(self, key: str, fresh: Any, node: Node, known: Known) -> Tensor:
        """Return the live tensor that takes an item, or a new one in its place."""
        size, dtype = known.tensor(node[1])
        if isinstance(fresh, Tensor) and fits(fresh, size, dtype):
            return fresh.detach()
        home = self._home(key)
        if home is None:  # extra state, which its module takes regardless of what it has now
            return torch.empty(size, dtype=dtype, device=torch.device(node[2]))
        self._replaced = True
        owner, name = home
        if name in owner._buffers:
            known_device = local(fresh).device if isinstance(fresh, Tensor) else torch.device(node[2])
            made = torch.empty(size, dtype=dtype, device=known_device)
            owner._buffers[name] = made
            return made
        param = owner._parameters[name]
        if isinstance(param, UninitializedParameter):
            param.materialize(tuple(size), dtype=dtype)
            return param.data
        if param is None or isinstance(param, DTensor) or param.shape != size:
            raise self._other_than(key, size, dtype, param)
        param.data = torch.empty(size, dtype=dtype, device=param.device)
        return param.data

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Take the loaded values."""
        whole = not self._replaced and loads_plainly(self.module)
        values = self.state() if self._replaced else dict(self._fresh)
        for key in self._nones:
            owner, name = self._home(key) or (self.module, key)
            owner._buffers[name] = None
            values.pop(key, None)
        for key, node in self._nodes.items():
            if isinstance(node, tuple) and node[0] == "@ref":
                whole = whole and tensors[node[1]] is not None
                values[key] = tensors[node[1]]
            elif isinstance(node, tuple) and node[0] == "@subclass" and _same_inside(values.get(key), node):
                continue
            else:
                whole = self._put(key, decode(node, tensors, _mesh(values.get(key))), values) and whole
        if not (whole and self._all_live(values)):
            set_model_state_dict(self.module, values, options=StateDictOptions(strict=self._strict))
        self._thaw()
        self.forget()

    def _put(self, key: str, value: Any, values: dict[str, Any]) -> bool:
        """Set a value that lay in the tree; return whether the module has it now."""
        fresh = values.get(key)
        home = self._home(key)
        values[key] = value
        if not isinstance(value, Tensor) or home is None:
            return False
        if home[1] not in home[0]._buffers:
            return self._retyped(home[0]._parameters[home[1]], key, value, values)
        if (
            isinstance(fresh, Tensor)
            and fits(fresh, value.shape, value.dtype)
            and value.layout is torch.strided
        ):
            fresh.detach().copy_(value)
            values[key] = fresh
        else:
            home[0]._buffers[home[1]] = value
        return True

    def _retyped(self, param: Tensor | None, key: str, value: Tensor, values: dict[str, Any]) -> bool:
        """Give a parameter whose type changed while it was trained the elements of that type: a copy converts them."""
        if param is None or isinstance(param, DTensor) or not is_plain(param) or not is_plain(value):
            return False
        if param.shape != value.shape or param.dtype == value.dtype:
            return False
        param.data = value.detach().to(param.device)
        values[key] = param.detach()
        return True

    def _thaw(self) -> None:
        """Make parameters frozen or not, as they were."""
        if not self.thaws:
            return
        frozen = set(self._frozen_then)
        saved = self._nodes.keys()
        for own, each in self.module.named_parameters():
            names = _get_fqns(self.module, own)
            wanted = not names <= frozen
            if names <= saved and each.requires_grad is not wanted and each.is_leaf and _differentiable(each):
                each.requires_grad_(wanted)


def _hooks(module: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    """Return the hooks that a script runs before a state dictionary is made, with their modules and prefixes.

    They may write into buffers what is to be saved. torch's own, such as those of FSDP2, write nothing.
    """
    return [
        (owner, f"{prefix}." if prefix else "", hook)
        for prefix, owner in module.named_modules()
        for hook in owner._state_dict_pre_hooks.values()
        if not str(getattr(hook, "__module__", "")).startswith("torch.")
    ]


def _differentiable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _names(module: nn.Module, name: str) -> Any:
    try:
        return _get_fqns(module, name)
    except (AttributeError, RuntimeError, AssertionError):
        return {name}


def _mesh(value: Any) -> Any:
    return getattr(value, "device_mesh", None)


def _same_inside(fresh: Any, node: Node) -> bool:
    """Return whether a tensor of a class of its own consists of parts that can be loaded into as they are."""
    if not (isinstance(fresh, Tensor) and is_traceable_wrapper_subclass(fresh)):
        return False
    names, context = fresh.__tensor_flatten__()
    if set(names) != set(node[3]) or tuple(fresh.shape) != tuple(node[4]):
        return False
    try:
        same_context = bool(decode(node[2], {}) == context)
    except (CheckpointError, RuntimeError, ValueError):
        return False
    return same_context and all(isinstance(each, tuple) and each[0] == "@ref" for each in node[3].values())
