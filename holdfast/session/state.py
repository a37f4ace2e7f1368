"""The state given to ``checkpoint`` and ``restore``, as flat named items, and the trees that describe its structure.

Tensors have the names that stock ``torch.distributed.checkpoint`` gives them: parameters their full names (DDP's prefix
stripped), optimizer state the names of its parameters, shards are DTensors. How a part of the state was made of them,
and everything else that it consists of, lies in ``structure/<rank>``
(:mod:`holdfast.storage.checkpoints.format.structure`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.optim import Optimizer

from holdfast.errors import CheckpointError, ScriptRefusedError
from holdfast.session import rng
from holdfast.session.encoded import Encoded, Placing, addresses, local
from holdfast.session.fsdp1 import FlatModulePart, FlatOptimizerPart, is_fsdp1
from holdfast.session.known import Known
from holdfast.session.modules import ModulePart
from holdfast.session.optimizer_params import first_params
from holdfast.session.optimizers import OptimizerPart
from holdfast.session.others import OtherPart
from holdfast.session.part import Part, parts_of
from holdfast.storage.checkpoints.format import structure
from holdfast.storage.checkpoints.format.places import Path
from holdfast.storage.checkpoints.format.structure import Node
from holdfast.storage.checkpoints.format.tensor_facts import nbytes_of
from holdfast.storage.checkpoints.load.coverage import require_consumed
from holdfast.storage.checkpoints.save.glance import identical

PARTS = "/parts"
"""Name of the tree that lists the parts."""


class StateTree:
    """Reads and loads one ``state`` dictionary (name to module, optimizer or other ``Stateful``)."""

    def __init__(self, state: Mapping[str, Any], rank: int = 0, world_size: int = 1) -> None:
        parts = parts_of(state)
        self.state = dict(state)
        self.rank, self.placing = rank, Placing(rank, alone=world_size == 1)
        self.dropped = {name for name, each in parts.items() if each.value is None}
        self._lenient = {name for name, each in parts.items() if not each.strict}
        modules = {name: each for name, each in parts.items() if isinstance(each.value, nn.Module)}
        self._modules = {
            name: (FlatModulePart if is_fsdp1(each.value) else ModulePart)(name, each)
            for name, each in modules.items()
        }
        self._optimizers = {
            name: _optimizer(name, each, {name: part.value for name, part in modules.items()})
            for name, each in parts.items()
            if isinstance(each.value, Optimizer)
        }
        for part in self._optimizers.values():
            part.given = {id(each.optimizer) for each in self._optimizers.values()}
        rest = parts.keys() - self._modules.keys() - self._optimizers.keys() - self.dropped
        self._others = {name: OtherPart(name, each) for name, each in parts.items() if name in rest}
        self._exact = True
        self._last: list[Encoded] = []
        self._named: list[tuple[str, int]] = []
        self._encoded: list[Encoded] = []
        self._fixed: tuple[list[Encoded], dict[str, Any]] | None = None
        self._updated: tuple[list[frozenset[int]], frozenset[int]] = [], frozenset()

    def same(self, state: Mapping[str, Any]) -> bool:
        """Return whether ``state`` holds the very objects that this tree was made of.

        A script may put them into new :class:`Part` objects at every call. Which rank gets what counts at a restore
        alone, and functions that are written there are never the same.
        """
        return state.keys() == self.state.keys() and all(
            _same(self.state[name], each) for name, each in state.items()
        )

    @property
    def private(self) -> tuple[str, ...]:
        """Prefixes of the names that this rank alone has."""
        return structure.key(self.rank), f"{structure.OWN}{self.rank}"

    def nested(self) -> dict[str, Any]:
        """Return everything as stock torch sees it: nested dictionaries whose tensors are the live ones."""
        nested: dict[str, Any] = {
            name: get_model_state_dict(each.module) for name, each in self._modules.items()
        }
        for name, each in self._optimizers.items():
            nested[name] = get_optimizer_state_dict(each.module, each.optimizer)
        return nested | {name: each.value.state_dict() for name, each in self._others.items()}

    def flat(self) -> dict[str, Any]:
        """Return everything, by full name; the quick way while no tensor was replaced.

        Raises:
            CheckpointError: something cannot be saved; names its path.
        """
        fixed, loose = self.split()
        return {**fixed, **loose}

    def split(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the same as :meth:`flat`, in two: modules and optimizers, and all else, which is read at every call.

        The first is the very same dictionary as the last time while only elements of its tensors changed.

        Raises:
            CheckpointError: something cannot be saved; names its path.
        """
        self.placing.candidates.clear()
        modules = [each.encode(self.placing) for each in self._modules.values()]
        same = identical(modules, self._last)
        if not same and (named := self._names()) != self._named:
            # Layers that were put elsewhere keep their tensors, and have other names.
            self._named = named
            for optimizer in self._optimizers.values():
                optimizer.forget()
        optimizers = [each.encode(self.placing, params_seen=same) for each in self._optimizers.values()]
        others = [each.encode(self.placing) for each in self._others.values()]
        self._last = modules
        if self._fixed is None or not identical([*modules, *optimizers], self._fixed[0]):
            parts = f"{structure.key(self.rank)}.{PARTS}"
            both = [*modules, *optimizers]
            self._fixed = both, self._flat(both, {parts: self._parts_node()})
        loose = self._flat(others)
        _require_apart(self._fixed[1], loose)
        self._encoded = [*modules, *optimizers, *others]
        return self._fixed[1], loose

    def _flat(self, parts: Sequence[Encoded], begun: Mapping[str, Any] | None = None) -> dict[str, Any]:
        own = structure.key(self.rank)
        flat: dict[str, Any] = {**(begun or {})}
        for each in parts:
            named = each.items | {f"{own}.{name}": node for name, node in each.nodes.items()}
            _require_apart(flat, named)
            flat |= named
        return flat

    @property
    def names(self) -> set[str]:
        """All full names of the parts as of the last :meth:`flat`."""
        own = structure.key(self.rank)
        return {
            name
            for each in self._encoded
            for name in (*each.items, *(f"{own}.{node}" for node in each.nodes))
        }

    @property
    def paths(self) -> dict[str, Path]:
        """Place of each item in the nested state at the last :meth:`flat`, by full name."""
        return {name: path for each in self._encoded for name, path in each.paths.items()}

    def _names(self) -> list[tuple[str, int]]:
        """Return which parameter or buffer has which name."""
        return [
            (name, id(tensor))
            for each in self._modules.values()
            for named in (
                each.module.named_parameters(remove_duplicate=False),
                each.module.named_buffers(remove_duplicate=False),
            )
            for name, tensor in named
        ]

    def _parts_node(self) -> Node:
        return {
            "format": 1,
            "parts": dict.fromkeys(self._modules, "module")
            | dict.fromkeys(self._optimizers, "optimizer")
            | dict.fromkeys(self._others, "other"),
        }

    def buffers(self) -> dict[str, Tensor]:
        """Return buffers of all modules, by full name."""
        return {name: each for part in self._modules.values() for name, each in part.buffers().items()}

    def updated(self, stepped: Set[int] | None = None) -> frozenset[int]:
        """Return addresses of the tensors that only an optimizer of this state changes, as of the last :meth:`flat`.

        ``stepped``: :func:`.first_params` of the optimizers that count; None: all.
        """
        each = [
            part.updated()
            for part in self._optimizers.values()
            if stepped is None or not stepped.isdisjoint(first_params(part.optimizer))
        ]
        if not identical(each, self._updated[0]):
            self._updated = each, frozenset().union(*each)
        return self._updated[1]

    def expected_nbytes(self) -> int:
        """Return about the bytes of this rank's tensors once training has begun.

        Optimizers make their state at their first step; before, it is counted as torch's own make it.
        """
        modules = [tensor for each in self._modules.values() for tensor in each.tensors()]
        found = {_address(each): nbytes_of(local(each)) for each in modules}
        return sum(found.values()) + sum(
            _optimizer_nbytes(each.optimizer) for each in self._optimizers.values()
        )

    def wanted(
        self, saved: Sequence[int], source: int, names: Mapping[str, Any], *, exact: bool
    ) -> list[str]:
        """Return names of the trees to restore from.

        Args:
            saved: ranks that saved.
            source: the one whose place this rank takes.
            names: all names of the checkpoint.
            exact: whether each rank takes its own place.
        """
        self._exact = exact
        mine = [name for name in names if name.startswith(f"{structure.key(source)}.")]
        if exact:
            return mine
        theirs = (
            f"{structure.key(rank)}.{name}" for rank in saved if rank != source for name in self._others
        )
        return mine + [name for name in theirs if name in names]

    def strict_optimizers(self) -> list[str]:
        """Return names of the optimizers that take all that was saved of them, or nothing."""
        return [name for name, _ in self.optimizers() if name not in self._lenient]

    def want(self, known: Known, trees: Mapping[str, Node], source: int) -> None:
        """Make room for everything that a checkpoint holds.

        Args:
            known: the checkpoint; gets the targets.
            trees: those that :meth:`wanted` asked for.
            source: as there.

        Raises:
            CheckpointError: the saved state does not fit this one; names the path.
        """
        self._check_parts(known.nodes.get(PARTS, {}).get("parts", {}))
        for name, module in self._modules.items():
            if name not in self._absent:
                module.want(known)
        for name, optimizer in self._optimizers.items():
            if name not in self._absent:
                optimizer.want(known)
        for name, other in self._others.items():
            if name not in self._absent:
                other.want(known, _by_rank(trees, name, source), exact=self._exact)

    def saved_elsewhere(self) -> set[str]:
        """Return the modules of which this rank loads what it did not save, as of the last :meth:`want`."""
        return {name for name, each in self._modules.items() if name not in self._absent and each.elsewhere}

    def freeze(self, frozen: Mapping[str, Set[str]]) -> None:
        """Take the names of frozen parameters that other ranks saved, by module."""
        for name in self.saved_elsewhere():
            self._modules[name].freeze(frozen.get(name, set()))

    def _check_parts(self, saved: Mapping[str, str]) -> None:
        now = self._parts_node()["parts"]
        self._absent = now.keys() - saved.keys()
        if missing := sorted(self._absent - self._lenient):
            raise CheckpointError(
                f"state {missing[0]!r}: the checkpoint has no such part (it has {', '.join(sorted(saved)) or 'none'}). "
                f"Restore with the code that saved it, or give holdfast.Part(..., strict=False) in its place to begin "
                "with what the script has made"
            )
        if gone := sorted(saved.keys() - now.keys() - self.dropped):
            raise CheckpointError(
                f"state {gone[0]!r}: the checkpoint has this part, and the state given to Session.restore() does not. "
                f"Give it, or {{{gone[0]!r}: holdfast.Part(None)}} to leave it behind"
            )
        for name in now.keys() & saved.keys():
            if now[name] != saved[name]:
                raise CheckpointError(
                    f"state {name!r}: it was saved as {saved[name]}, and is {now[name]} now"
                )

    def take(self, tensors: Mapping[str, Any], rank: int, world_size: int) -> None:
        """Put the loaded values into the objects."""
        for name, module in self._modules.items():
            if name not in self._absent:
                module.load(tensors)
        for name, optimizer in self._optimizers.items():
            if name not in self._absent:
                optimizer.load(tensors)
        for name, other in self._others.items():
            if name not in self._absent:
                other.load(tensors, rank, world_size)
        self.forget()

    def forget(self) -> None:
        """Look at everything again."""
        for module in self._modules.values():
            module.forget()
        for optimizer in self._optimizers.values():
            optimizer.forget()
        self._last, self._named = [], []

    def require_all_read(self, known: Known) -> None:
        """Ensure that every tensor of this rank's own shard, the ``known``, is taken by a part of the state.

        Raises:
            CheckpointError: one is not; names it.
        """
        saved = known.metadata.state_dict_metadata
        tensors = [name for name, each in saved.items() if isinstance(each, TensorStorageMetadata)]
        twice = [name for node in known.nodes.values() for name in structure.aliases(node)]
        allowed = (*self.dropped, *self._lenient, rng.PREFIX)
        own = [structure.own_name(self.rank, name) for name in allowed]
        require_consumed(tensors, {*known.targets, *twice}, (*allowed, *own))

    def settle(self) -> None:
        """Let loaders make their iterators, as they do when their state is asked for.

        Making one draws a random number, which must be drawn before the random state is restored and not after it.
        """
        for other in self._others.values():
            other.settle()

    def modules(self) -> Iterator[tuple[str, ModulePart]]:
        """Yield the modules by name."""
        yield from self._modules.items()

    def optimizers(self) -> Iterator[tuple[str, OptimizerPart]]:
        """Yield the optimizers by name."""
        yield from self._optimizers.items()

    def others(self) -> Iterator[tuple[str, OtherPart]]:
        """Yield all else by name."""
        yield from self._others.items()


def _require_apart(flat: Mapping[str, Any], named: Mapping[str, Any]) -> None:
    """Refuse items of a part that would lie where another part's lie; a plain value is in the tree of its part as well.

    Raises:
        ScriptRefusedError: names the item.
    """
    if flat.keys().isdisjoint(named):
        return
    for name in sorted(flat.keys() & named.keys()):
        is_tree = structure.is_tree(name)
        if is_tree or isinstance(flat[name], Tensor) or isinstance(named[name], Tensor):
            raise ScriptRefusedError(
                f"{name.partition('.')[2] if is_tree else name}: two parts of the state have an item of this name, and "
                "one would be restored as the other. Give the part whose own name has a dot or a slash in it another "
                "name, in Session.restore() and in Session.checkpoint()."
            )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Part) and isinstance(other, Part):
        return one.value is other.value and one.strict == other.strict
    return one is other


def _by_rank(trees: Mapping[str, Node], name: str, source: int) -> list[tuple[int, Node]]:
    found = {
        int(full.removeprefix(structure.PREFIX).split(".", 1)[0]): node
        for full, node in trees.items()
        if full.removeprefix(structure.PREFIX).split(".", 1)[1] == name
    }
    if source in found and len(found) == 1:
        return [(source, found[source])]
    return sorted(found.items())


def _optimizer(name: str, part: Part, modules: Mapping[str, nn.Module]) -> OptimizerPart:
    _single(name, part.value)
    flat = any(is_fsdp1(each) for each in modules.values())
    return (FlatOptimizerPart if flat else OptimizerPart)(name, part, modules)


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
        return sum(nbytes_of(local(each)) for each in held if isinstance(each, Tensor))
    nbytes = 0
    for group in optimizer.param_groups:
        like = _TENSORS_LIKE_PARAMETER.get(type(optimizer).__name__, 0)
        like += (
            bool(group.get("amsgrad"))
            + bool(group.get("momentum")) * (like < 2)
            + bool(group.get("centered"))
        )
        nbytes += like * sum(nbytes_of(local(each)) for each in group["params"] if each.requires_grad)
    return nbytes


def _address(tensor: Tensor) -> int:
    return next((at for at, _ in addresses(tensor)), id(tensor))


def _single(name: str, optimizer: Optimizer) -> Optimizer:
    """Return the optimizer, unless it is a container of others: torch would look for state in the container itself."""
    inside = getattr(optimizer, "optimizers", None)
    if isinstance(inside, list | tuple) and any(isinstance(each, Optimizer) for each in inside):
        raise ScriptRefusedError(
            f"state[{name!r}] is a {type(optimizer).__name__} of {len(inside)} optimizers: expected the optimizers "
            "themselves. holdfast.integrations.torchtitan.unwrapped(states) puts them in its place."
        )
    return optimizer
