"""Optimizers as they are saved: their state of each parameter, under its full name, and the groups' options.

The state is read from ``optimizer.state`` as it is. torch's ``get_optimizer_state_dict`` makes up what is not there
yet (by a step with zero gradients), so that a parameter without a gradient so far, such as an expert that no token was
routed to, cannot be distinguished from one that has state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from holdfast.errors import ScriptRefusedError
from holdfast.session.encoded import Encoded, Placing, addresses
from holdfast.session.in_place import saves_plainly
from holdfast.session.optimizer_params import full_names
from holdfast.session.part import Part
from holdfast.session.placed import is_of_a_part
from holdfast.session.state_watch import StateWatch, plain_options
from holdfast.storage.checkpoints.format.encoder import Encoder
from holdfast.storage.checkpoints.format.places import refused
from holdfast.storage.checkpoints.format.tensor_facts import part_facts
from holdfast.storage.checkpoints.save.glance import identical

_NOTHING = Encoded({}, {}, {})


class SavedOptimizer:
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
            self._full, self._kept = full_names(self.name, params, self._modules), params
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
        parts = {name: part_facts(each) for name, each in divided.items() if is_of_a_part(nodes.get(name))}
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
            state_dict = self.optimizer.state_dict()
        except RuntimeError:  # one that has to gather it first: its own part is read from what it keeps
            return {}
        return {name: each for name, each in state_dict.items() if name not in ("state", "param_groups")}

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
