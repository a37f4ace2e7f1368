"""Optimizers in a state: their state of each parameter, under the parameter's full name, and the groups' options.

The state is read from ``optimizer.state`` as it is. torch's ``get_optimizer_state_dict`` makes up what is not there
yet (by a step with zero gradients), so that a parameter without a gradient so far, such as an expert that no token was
routed to, cannot be distinguished from one that has state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import _get_fqns
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from holdfast.errors import CheckpointError, ScriptRefusedError
from holdfast.session.encoded import Encoded, Placing, addresses
from holdfast.session.in_place import saves_plainly, updates_plainly
from holdfast.session.known import Known
from holdfast.session.part import Part
from holdfast.session.placed import is_of_a_part, placed, require_open, require_same_part
from holdfast.session.watch import StateWatch, plain_options
from holdfast.storage.checkpoints.format.decoder import Decoder, decode
from holdfast.storage.checkpoints.format.encoder import Encoder
from holdfast.storage.checkpoints.format.places import refused
from holdfast.storage.checkpoints.format.structure import Node, refs
from holdfast.storage.checkpoints.format.tensor_facts import part_told
from holdfast.storage.checkpoints.save.glance import identical

_NOTHING = Encoded({}, {}, {})


def first_params(optimizer: Optimizer) -> set[int]:
    """Return the identities of each group's first parameter: of an optimizer and of one around it they are the same."""
    return {id(group["params"][0]) for group in optimizer.param_groups if group["params"]}


class OptimizerPart:
    """One optimizer of the state, with the modules whose parameters it updates."""

    def __init__(self, name: str, part: Part, modules: Mapping[str, nn.Module]) -> None:
        self.name, self.optimizer, self._strict = name, part.value, part.strict
        self._modules = modules
        self._full: dict[int, str] = {}
        self._kept: list[Tensor] = []
        self._cached: Encoded | None = None
        self._watch: StateWatch | None = None
        self._options: tuple[bytes, Encoded] | None = None
        self._adds: bool | None = None
        """Whether its own ``state_dict()`` has more than state and groups; None: look."""
        self.given: Set[int] = frozenset()
        """Identities of all optimizers of the state."""
        self._whole: tuple[tuple[Encoded, ...], Encoded] | None = None
        self._updated: frozenset[int] | None = None
        self._params()

    @property
    def module(self) -> nn.Module:
        """The module that has all of its parameters, as stock torch requires.

        Raises:
            ScriptRefusedError: there is no such module.
        """
        mine = {id(each) for group in self.optimizer.param_groups for each in group["params"]}
        for module in self._modules.values():
            if mine <= {id(each) for each in module.parameters()}:
                return module
        raise ScriptRefusedError(
            f"state[{self.name!r}]: its parameters are of several modules: stock torch cannot name them"
        )

    def _params(self) -> dict[str, Tensor]:
        """Return its parameters by full name.

        Raises:
            ScriptRefusedError: no module in the state has one of them.
        """
        params = [each for group in self.optimizer.param_groups for each in group["params"]]
        if any(id(each) not in self._full for each in params):
            self._full, self._kept = _full_names(self.name, params, self._modules), params
        return {self._full[id(each)]: each for each in params}

    def updated(self) -> frozenset[int]:
        """Return addresses of the tensors that change in the optimizer's step only, as of the last :meth:`encode`."""
        if self._updated is None:
            self._updated = frozenset(at for tensor in self._changed_by_step() for at, _ in addresses(tensor))
        return self._updated

    def _changed_by_step(self) -> Iterator[Tensor]:
        """Yield parameters and their state."""
        for group in self.optimizer.param_groups:
            yield from group["params"]
        for values in self.optimizer.state.values():
            if isinstance(values, Mapping):
                yield from (each for each in values.values() if isinstance(each, Tensor))

    def encode(self, placing: Placing, *, params_seen: bool = False) -> Encoded:
        """Return the items to save; the quick way while no tensor was replaced.

        Args:
            placing: where tensors go.
            params_seen: whether it is known that every parameter lies where it lay at the last call.
        """
        if (
            self._cached is None
            or self._cached.inlined
            or self._watch is None
            or not self._watch.same(params_seen=params_seen)
        ):
            self._updated = self._options = self._adds = None
            self._cached, self._watch = self._state(placing), StateWatch(self.optimizer)
        made = self._cached, self._groups(placing), self._more(placing)
        if self._whole is None or not identical(made, self._whole[0]):
            self._whole = made, self._joined(*made)
        return self._whole[1]

    def _joined(self, *parts: Encoded) -> Encoded:
        joined = Encoded({}, {}, {})
        for each in parts:
            joined.nodes |= {f"{self.name}/{kind}": node for kind, node in each.nodes.items()}
            joined.items |= each.items
            joined.paths |= each.paths
        return joined

    def forget(self) -> None:
        """Look at the optimizer, and at the names of its parameters, again."""
        self._cached = self._options = None
        self._full.clear()

    def _state(self, placing: Placing) -> Encoded:
        params = self._params()
        divided = {name: each for name, each in params.items() if isinstance(each, DTensor)}
        nodes, shared = {}, []
        encoder = Encoder(placing.optimizer(divided.keys()), placing.rank, noted=False)
        for name in params:
            values = self.optimizer.state.get(params[name])
            if values is not None:
                nodes[name] = encoder.part_of(values, (self.name, "state", name), opened=True)
        mine = {id(each) for each in params.values()}
        for key, values in self.optimizer.state.items():
            if not isinstance(key, Tensor):
                shared.append((key, encoder.part_of(values, (self.name, "shared", str(key)))))
            elif id(key) not in mine:
                raise refused(
                    (self.name, "state"),
                    f"it has state for a tensor {list(key.shape)} that is in none of its parameter groups",
                    "remove that state from the optimizer",
                )
        parts = {name: part_told(each) for name, each in divided.items() if is_of_a_part(nodes.get(name))}
        return Encoded.by(encoder, {"state": {"params": nodes, "shared": shared, "parts": parts}})

    def _groups(self, placing: Placing) -> Encoded:
        """Return the groups' options; those such as the learning rate are plain numbers that schedulers replace."""
        options = plain_options(self.optimizer.param_groups)
        if self._options is not None and options == self._options[0]:
            return self._options[1]
        self._params()
        groups = [
            {
                option: [self._full[id(each)] for each in value] if option == "params" else value
                for option, value in group.items()
            }
            for group in self.optimizer.param_groups
        ]
        encoder = Encoder(placing.optimizer(), placing.rank, whole=False)
        made = Encoded.by(encoder, {"groups": encoder.part_of(groups, (self.name, "param_groups"))})
        self._options = (options, made) if options is not None else None
        return made

    def _more(self, placing: Placing) -> Encoded:
        """Return what its own ``state_dict()`` has beside state and groups, if it has more."""
        if self._adds is None:
            self._adds = not saves_plainly(self.optimizer) and bool(self._beside())
            if not self._adds:
                self._require_none_inside()
        if not self._adds:
            return _NOTHING
        encoder = Encoder(placing.other(), placing.rank)
        more = encoder.part_of(self._beside(), (self.name, "more"))
        return Encoded.by(encoder, {"more": more}, stock=False)

    def _beside(self) -> dict[str, Any]:
        try:
            told = self.optimizer.state_dict()
        except RuntimeError:  # one that has to gather it first: its own part is read from what it keeps
            return {}
        return {name: each for name, each in told.items() if name not in ("state", "param_groups")}

    def _require_none_inside(self) -> None:
        """Refuse an optimizer around another one, whose state is neither in its own nor given to the Session."""
        for name, inner in vars(self.optimizer).items():
            if not isinstance(inner, Optimizer) or inner is self.optimizer or id(inner) in self.given:
                continue
            for key, values in inner.state.items():
                empty = isinstance(values, Mapping) and not values
                if not empty and self.optimizer.state.get(key) is not values:
                    raise refused(
                        (self.name, name),
                        f"an optimizer ({type(inner).__name__}) inside of the {type(self.optimizer).__name__}, with a "
                        "state of its own that would be lost",
                        f"give the attribute {name!r} to the Session as well, as another part of the state",
                    )

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
        told = known.nodes.get(f"{self.name}/state") or {"params": {}, "shared": []}
        self._saved: dict[str, Node] = {}
        for name, param in params.items():
            node = told["params"].get(name)
            if node is None:
                node = by_names(known, (self.name, "state", name), param)
            if node is not None:
                self._saved[name] = node
                self._require_placeable(name, param, told.get("parts"), known)
                self._want(name, node, param, known)
        self._shared = told["shared"]
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
        addable = _all_names(self._modules)
        self._regroup = bool(saved) and not missing and extra <= addable.keys()
        if self._regroup:
            self._by_name = dict(params) | {name: addable[name] for name in extra}
            told = known.nodes.get(f"{self.name}/state") or {"params": {}}
            for name in extra:
                node = told["params"].get(name)
                if node is not None:
                    self._saved[name] = node
                    self._require_placeable(name, addable[name], told.get("parts"), known)
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
            told = decoder.value({option: each for option, each in node.items() if option != "params"})
            if self._regroup:
                group["params"] = [params[name] for name in node["params"]]
            elif "param_names" in group:
                told.pop("param_names", None)
            group.update(told)
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


def in_order(optimizer: Optimizer) -> list[Tensor]:
    """Return its parameters, group by group."""
    return [each for group in optimizer.param_groups for each in group["params"]]


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


def _all_names(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for part, module in modules.items():
        for own, param in module.named_parameters():
            for name in _get_fqns(module, own):
                found[name if len(modules) == 1 else f"{part}.{name}"] = param
    return found


def _full_names(name: str, params: list[Tensor], modules: Mapping[str, nn.Module]) -> dict[int, str]:
    """Return the full name of each parameter, by its identity."""
    known = {id(param): full for full, param in reversed(_all_names(modules).items())}
    if any(id(each) not in known for each in params):
        raise ScriptRefusedError(
            f"state[{name!r}]: no module in the state dictionary has all of this optimizer's parameters. "
            "Add the model to it, for example {'model': model, 'optimizer': optimizer}; or, if a layer was replaced in "
            "the model, give its parameters to the optimizer."
        )
    return known
