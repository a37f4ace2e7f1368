"""Optimizers in a state: saved, and restored from a checkpoint that another layout of ranks may have saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from holdfast.errors import CheckpointError
from holdfast.session.in_place import updates_plainly
from holdfast.session.known import Known
from holdfast.session.optimizer_params import all_names, in_order
from holdfast.session.optimizer_saving import SavedOptimizer
from holdfast.session.placed import placed, require_open, require_same_part
from holdfast.storage.checkpoints.format.decoder import Decoder, decode
from holdfast.storage.checkpoints.format.structure import Node, refs


class OptimizerPart(SavedOptimizer):
    """An optimizer that takes what a checkpoint has of it: first :meth:`want`, then :meth:`load`."""

    def want(self, known: Known) -> None:
        """Make room for what the checkpoint holds of the optimizer.

        Raises:
            CheckpointError: it does not fit this optimizer.
        """
        params = self._params()
        self._divided: set[str] = set()
        self._want_state(params, known)
        self._groups_then: list[Node] = known.nodes.get(f"{self.name}/groups") or []
        self._check_groups(params, known)
        for number, group in enumerate(self._groups_then):
            for option, node in group.items():
                held = self._held_option(number, option)
                known.want(node, held=held if isinstance(held, Tensor) else None)
        self._more_then: Node = known.nodes.get(f"{self.name}/more")
        if self._more_then is not None:
            known.want(self._more_then)

    def _want_state(self, params: Mapping[str, Tensor], known: Known) -> None:
        state = known.nodes.get(f"{self.name}/state") or {"params": {}, "shared": []}
        self._saved: dict[str, Node] = {}
        for name, param in params.items():
            node = state["params"].get(name)
            if node is None:
                node = by_names(known, (self.name, "state", name), param)
            if node is not None:
                self._saved[name] = node
                self._require_placeable(name, param, state.get("parts"), known)
                self._want(name, node, param, known)
        self._shared = state["shared"]
        for _, node in self._shared:
            known.want(node)

    def _require_placeable(
        self, name: str, param: Tensor, parts: Mapping[str, Any] | None, known: Known
    ) -> None:
        path = f"{self.name}.state.{name}"
        if isinstance(param, DTensor) and self._was_whole(name, known):
            require_open(self._saved[name], path, lambda item: _fits(known.tensor(item)[0], param))
            self._divided.add(name)
        elif parts is not None:  # a release before noted no parts: its checkpoints are taken as it took them
            require_same_part(self._saved[name], param, path, parts.get(name))

    def _was_whole(self, name: str, known: Known) -> bool:
        """Return whether the rank that saved the parameter had all of it in a plain tensor."""
        for node in self._then(name, known):
            return node[0] not in ("@ref", "@local") or (node[0] == "@ref" and node[3] is None)
        return False

    def _then(self, name: str, known: Known) -> Iterator[tuple[Any, ...]]:
        """Yield what the modules' trees have of a parameter."""
        for part in self._modules:
            held = (known.nodes.get(part) or {}).get("state", {})
            node = held.get(name if len(self._modules) == 1 else name.removeprefix(f"{part}."))
            if isinstance(node, tuple) and node:
                yield node

    def _want(self, name: str, node: Node, param: Tensor, known: Known) -> None:
        if not isinstance(node, dict):
            known.want(node, like=param)
            return
        values = self.optimizer.state.get(param)
        on_device = param.device.type != "cpu" and self._device_then(name, known) not in ("", "cpu")
        on_device = on_device and not isinstance(param, DTensor)
        for key, each in node.items():
            held = values.get(key) if isinstance(values, Mapping) else None
            if isinstance(each, tuple) and each and each[0] == "@object":
                known.targets[each[1]] = None
            else:
                # What lay on the host (Adam's count of steps, an offloaded moment) lies there again, of whatever shape.
                apart = on_device and all(device == "cpu" for _, device, _ in refs(each))
                held = held if isinstance(held, Tensor) else None
                known.want(each, like=None if apart else param, held=held)

    def _device_then(self, name: str, known: Known) -> str:
        """Return on which kind of device a parameter was when it was saved; empty: that is not known."""
        return next((str(node[2]) for node in self._then(name, known) if node[0] == "@ref"), "")

    def _held_option(self, number: int, option: str) -> Any:
        groups = self.optimizer.param_groups
        return groups[number].get(option) if number < len(groups) else None

    def _check_groups(self, params: Mapping[str, Tensor], known: Known) -> None:
        """Check whether the groups that were saved are those of this rank: else only their options are taken."""
        saved = [name for group in self._groups_then for name in group["params"]]
        module_names = {
            f"{key}" for part in self._modules for key in (known.nodes.get(part) or {}).get("state", {})
        } | {
            f"{part}.{key}"
            for part in self._modules
            for key in (known.nodes.get(part) or {}).get("state", {})
        }
        extra, missing = set(saved) - params.keys(), params.keys() - set(saved)
        addable = all_names(self._modules)
        self._regroup = bool(saved) and not missing and extra <= addable.keys()
        if self._regroup:
            self._by_name = dict(params) | {name: addable[name] for name in extra}
            state = known.nodes.get(f"{self.name}/state") or {"params": {}}
            for name in extra:
                node = state["params"].get(name)
                if node is not None:
                    self._saved[name] = node
                    self._require_placeable(name, addable[name], state.get("parts"), known)
                    self._want(name, node, addable[name], known)
            return
        elsewhere = not (missing & module_names)
        if self._strict and not (elsewhere and len(self._groups_then) == len(self.optimizer.param_groups)):
            raise CheckpointError(
                f"{self.name}.param_groups: the checkpoint has {len(self._groups_then)} groups of {len(saved)} "
                f"parameters, the optimizer {len(self.optimizer.param_groups)} of {len(params)}"
                + (f"; not in the checkpoint: {sorted(missing)[0]!r}" if missing else "")
                + (
                    f"; not in the model: {sorted(extra - addable.keys())[0]!r}"
                    if extra - addable.keys()
                    else ""
                )
                + ". Restore with the code that saved it"
            )

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Take the loaded values."""
        params = self._by_name if self._regroup else self._params()
        decoder = Decoder(tensors)
        values = {
            name: decoder.value(node, getattr(params[name], "device_mesh", None))
            for name, node in self._saved.items()
        }
        live = self.optimizer.state
        values |= {name: placed(values[name], params[name], live.get(params[name])) for name in self._divided}
        shared = [(key, decoder.value(node)) for key, node in self._shared]
        self._load_groups(params, tensors)
        if not updates_plainly(self.optimizer):
            more: Mapping[str, Any] = {} if self._more_then is None else decode(self._more_then, tensors)
            self._load_by_its_own(params, values, more)
        state = self.optimizer.state
        if updates_plainly(self.optimizer) or not _holds(state, params, values):
            # Set as they were saved: Optimizer.load_state_dict() would convert state to its parameter's type.
            for key in list(state):
                del state[key]
            for name, each in values.items():
                state[params[name]] = each
        for key, each in shared:
            state[key] = each
        self.forget()

    def _load_groups(self, params: Mapping[str, Tensor], tensors: Mapping[str, Any]) -> None:
        groups = self.optimizer.param_groups
        if self._regroup:
            while len(groups) < len(self._groups_then):
                groups.append({**self.optimizer.defaults, "params": []})
            del groups[len(self._groups_then) :]
        decoder = Decoder(tensors)
        for group, node in zip(groups, self._groups_then, strict=False):
            options = decoder.value({option: each for option, each in node.items() if option != "params"})
            if self._regroup:
                group["params"] = [params[name] for name in node["params"]]
            elif "param_names" in group:
                options.pop("param_names", None)
            group.update(options)
        if updates_plainly(self.optimizer):
            # Fills in what this version of torch has beyond the one that saved.
            self.optimizer.__setstate__({"state": self.optimizer.state, "param_groups": groups})

    def _load_by_its_own(
        self, params: Mapping[str, Tensor], values: Mapping[str, Any], more: Mapping[str, Any]
    ) -> None:
        """Load through its own ``load_state_dict`` or hooks, which may do more than set what was saved."""
        number = {id(each): at for at, each in enumerate(in_order(self.optimizer))}
        packed = {
            "state": {number[id(params[name])]: each for name, each in values.items()},
            "param_groups": [
                {**group, "params": [number[id(each)] for each in group["params"]]}
                for group in self.optimizer.param_groups
            ],
        }
        self.optimizer.load_state_dict({**packed, **more})


def _fits(size: torch.Size, param: Tensor) -> bool:
    return size == param.shape or size.numel() == 1


def _holds(state: Mapping[Any, Any], params: Mapping[str, Tensor], values: Mapping[str, Any]) -> bool:
    """Return whether an optimizer that loads in its own way has taken every value with its type and shape."""
    return all(_alike(state.get(params[name]), each) for name, each in values.items())


def _alike(held: Any, saved: Any) -> bool:
    if isinstance(saved, Mapping):
        return isinstance(held, Mapping) and all(
            key in held and _alike(held[key], each) for key, each in saved.items()
        )
    if isinstance(saved, Tensor):
        return (
            isinstance(held, Tensor)
            and type(held) is type(saved)
            and (held.dtype, held.shape) == (saved.dtype, saved.shape)
        )
    return True


def by_names(known: Known, path: tuple[str, ...], param: Tensor) -> Node | None:
    """Return the state of a parameter that another rank saved: identified by the names of its items alone."""
    found = known.by_path.get(path)
    if not found:
        return None
    node: dict[str, Node] = {}
    for rest, name in found.items():
        if len(rest) != 1:
            raise CheckpointError(
                f"{name}: state of this form can be restored by the rank that saved it, in the same layout only"
            )
        is_object = not hasattr(known.metadata.state_dict_metadata[name], "properties")
        node[rest[0]] = ("@object", name) if is_object else ("@ref", name, _device_of(name, param), None)
    return node


def _device_of(name: str, param: Tensor) -> str:
    return "cpu" if name.endswith(".step") else param.device.type
