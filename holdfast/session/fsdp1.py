"""FullyShardedDataParallel (FSDP1): its parameters are ranges of flat buffers, cut at any element.

torch's own state dictionaries of it gather every parameter, and the optimizer's state, on the step's path. Here each
rank's range is described as it lies there (:mod:`holdfast.storage.checkpoints.format.flat`), under the full names of
the parameters: nothing is gathered, and any other number of ranks, or stock torch, can read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp._common_utils import clean_tensor_name

from holdfast.errors import CheckpointError
from holdfast.session.encoded import Encoded, Placing
from holdfast.session.known import Known
from holdfast.session.modules import ModulePart
from holdfast.session.optimizer_params import in_order
from holdfast.session.optimizers import OptimizerPart, by_names
from holdfast.storage.checkpoints.format.decoder import Decoder
from holdfast.storage.checkpoints.format.encoder import Encoder
from holdfast.storage.checkpoints.format.flat import FlatShard
from holdfast.storage.checkpoints.format.places import refused
from holdfast.storage.checkpoints.format.structure import Node


def is_fsdp1(module: nn.Module) -> bool:
    """Return whether a part of ``module`` is wrapped by FSDP1."""
    return any(isinstance(each, FullyShardedDataParallel) for each in module.modules())


@dataclass(frozen=True)
class Range:
    """This rank's range of one parameter."""

    key: Tensor
    """The parameter by which the optimizer knows it: the original one, or the flat one."""
    local: Tensor
    """[numel] this rank's elements, live."""
    shape: torch.Size
    """Of the whole parameter."""
    start: int
    """Where the range begins in the parameter, in elements."""
    at: int
    """Where it begins in the optimizer's state for ``key``."""

    def of(self, values: Tensor) -> FlatShard:
        """Return the same range of state that the optimizer keeps for ``key``."""
        return FlatShard(values[self.at : self.at + self.local.numel()], self.shape, self.start)


def ranges(module: nn.Module) -> dict[str, Range]:
    """Return this rank's range of every parameter that FSDP1 has flattened, by full name; also where that is empty."""
    found: dict[str, Range] = {}
    for prefix, each in module.named_modules():
        handle = each._handle if isinstance(each, FullyShardedDataParallel) else None
        if handle is not None:
            found |= {
                clean_tensor_name(f"{prefix}.{name}" if prefix else name): one
                for name, one in _of_handle(handle)
            }
    return found


def _of_handle(handle: Any) -> Iterator[tuple[str, Range]]:
    flat = handle.flat_param
    # Before the first forward pass there is only the one.
    held = getattr(flat, "_local_shard", flat.data) if handle.uses_sharded_strategy else flat.data
    originals = flat._params if handle._use_orig_params else [None] * len(flat._fqns)
    rows = zip(flat._fqns, flat._shapes, flat._shard_param_infos, originals, strict=True)
    for name, shape, info, original in rows:
        at, count = (info.offset_in_shard, info.numel_in_shard) if info.in_shard else (0, 0)
        local = held.detach()[at : at + count]
        start = info.intra_param_start_idx if info.in_shard else 0
        if original is None:
            yield name, Range(flat, local, shape, start, at)
        else:
            yield name, Range(original, local, shape, start, 0)


class FlatModulePart(ModulePart):
    """A module of which parts are wrapped by FSDP1."""

    def state(self) -> dict[str, Any]:
        """Return its tensors, all of them live: ranges of the flat ones.

        Raises:
            CheckpointError: a part of it keeps state beside its tensors.
        """
        for name, each in self.module.named_modules():
            if type(each).get_extra_state is not nn.Module.get_extra_state:
                raise refused(
                    (self.name, clean_tensor_name(name)),
                    "extra state within FullyShardedDataParallel",
                    "keep it in a part of the state of its own",
                )
        flat = ranges(self.module)
        found: dict[str, Any] = {
            name: FlatShard(each.local, each.shape, each.start)
            for name, each in flat.items()
            if each.local.numel()
        }
        keys = {id(each.key) for each in flat.values()}
        for own, param in self.module.named_parameters():
            if id(param) not in keys:
                found[clean_tensor_name(own)] = param.detach()
        return found | dict(_persistent_buffers(self.module))

    def _want(self, key: str, node: Node, known: Known) -> None:
        if key not in self._fresh and key in ranges(self.module):
            # Of another rank, in whose place this one is: none of it is here.
            del self._nodes[key]
            return
        super()._want(key, node, known)

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Only look at the module again: everything was loaded into the live tensors.

        Raises:
            CheckpointError: something was saved that is no tensor of the module's own.
        """
        for key, node in self._nodes.items():
            if not (isinstance(node, tuple) and node[0] == "@ref"):
                raise CheckpointError(
                    f"{self.name}.{key}: it changed its shape within FullyShardedDataParallel: expected one shape "
                    "from step to step"
                )
        self._thaw()
        self.forget()


def _persistent_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for prefix, owner in module.named_modules():
        for name, each in owner._buffers.items():
            if each is not None and name not in owner._non_persistent_buffers_set:
                yield clean_tensor_name(f"{prefix}.{name}" if prefix else name), each


class FlatOptimizerPart(OptimizerPart):
    """An optimizer of such a module: its state for a range is a range too."""

    def _ranges(self) -> dict[str, Range]:
        mine = {id(each) for group in self.optimizer.param_groups for each in group["params"]}
        return {
            name: each
            for module in self._modules.values()
            for name, each in ranges(module).items()
            if id(each.key) in mine
        }

    def _state(self, placing: Placing) -> Encoded:
        encoder, nodes = Encoder(placing.optimizer(), placing.rank, noted=False), {}
        mine, flat = {id(each) for each in self._params().values()}, self._ranges()
        keys = {id(each.key) for each in flat.values()}
        for name, each in flat.items():
            values = self.optimizer.state.get(each.key)
            if values and each.local.numel():
                own_values = {
                    key: each.of(value) if _is_flat(value, each) else value for key, value in values.items()
                }
                nodes[name] = encoder.part_of(own_values, (self.name, "state", name), opened=True)
        for key, values in self.optimizer.state.items():
            if id(key) in keys:
                continue
            if id(key) not in mine:
                raise refused((self.name, "state"), "it has state that belongs to no parameter of its groups")
            name = self._full[id(key)]
            nodes[name] = encoder.part_of(values, (self.name, "state", name), opened=True)
        return Encoded.by(encoder, {"state": {"params": nodes, "shared": []}})

    def _more(self, placing: Placing) -> Encoded:
        made = super()._more(placing)
        if made.nodes:
            raise refused(
                (self.name,),
                "its own state_dict() has more than state and groups, within FullyShardedDataParallel",
                "keep that in a part of the state of its own",
            )
        return made

    def _want_state(self, params: Mapping[str, Tensor], known: Known) -> None:
        """Make room for the state of this rank's ranges, whatever ranges the saving ranks had."""
        state = known.nodes.get(f"{self.name}/state") or {"params": {}}
        self._made: dict[Tensor, dict[str, Any]] = {}
        self._saved, self._shared = {}, []
        flat = self._ranges()
        keys = {id(each.key) for each in flat.values()}
        plain = {name: each for name, each in params.items() if id(each) not in keys}
        for name, param in (*((name, each.key) for name, each in flat.items()), *plain.items()):
            node = state["params"].get(name) or by_names(known, (self.name, "state", name), param)
            if node is None or (name in flat and not flat[name].local.numel()):
                continue
            self._saved[name] = node
            if name in flat:
                self._want_range(name, flat[name], node, known)
            else:
                self._want(name, node, param, known)

    def _want_range(self, param: str, mine: Range, node: Mapping[str, Node], known: Known) -> None:
        values = self._made.setdefault(mine.key, {})
        for key, each in node.items():
            name = each[1] if isinstance(each, tuple) and each and each[0] == "@ref" else ""
            if not name or known.tensor(name)[0] != mine.shape:
                self._want(param, {key: each}, mine.key, known)
                continue
            if key not in values:
                count = (
                    mine.key.numel()
                    if mine.at or mine.local.numel() < mine.key.numel()
                    else mine.local.numel()
                )
                values[key] = torch.zeros(count, dtype=known.tensor(name)[1], device=mine.local.device)
            known.targets[name] = mine.of(values[key])

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Take the loaded values."""
        params, flat = self._by_name if self._regroup else self._params(), self._ranges()
        decoder, state = Decoder(tensors), self.optimizer.state
        self._load_groups(params, tensors)
        state.clear()
        keys = {name: flat[name].key if name in flat else params[name] for name in self._saved}
        order = {id(each): at for at, each in enumerate(in_order(self.optimizer))}
        for name in sorted(keys, key=lambda each: order[id(keys[each])]):
            key, node = keys[name], self._saved[name]
            made = self._made.get(key, {})
            rest = {one: decoder.value(each) for one, each in node.items() if one not in made}
            state[key] = {one: made[one] if one in made else rest[one] for one in node}
        self.forget()


def _is_flat(value: Any, mine: Range) -> bool:
    return isinstance(value, Tensor) and value.dim() == 1 and value.numel() >= mine.at + mine.local.numel()
