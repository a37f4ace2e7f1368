"""Parts that are neither module nor optimizer: schedulers, samplers, loaders, any object with ``state_dict()``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor

from holdfast.errors import CheckpointError, ScriptRefusedError
from holdfast.session import loaders
from holdfast.session.encoded import Encoded, Placing
from holdfast.session.known import Known
from holdfast.session.part import Part
from holdfast.session.placed import divided
from holdfast.storage.checkpoints.format.decoder import decode
from holdfast.storage.checkpoints.format.encoder import Encoder
from holdfast.storage.checkpoints.format.places import dotted
from holdfast.storage.checkpoints.format.plain_pickle import dump_plain
from holdfast.storage.checkpoints.format.raw_tensors import Views
from holdfast.storage.checkpoints.format.structure import OWN, Node, refs, strides, tagged
from holdfast.storage.checkpoints.format.tensor_facts import is_distributed

MOST_PLAIN = 512
"""Largest number of a part's plain values that stock torch can read one by one; a table of words need not be."""


class OtherPart:
    """One such object."""

    def __init__(self, name: str, part: Part) -> None:
        if not isinstance(part.value, Stateful):
            raise ScriptRefusedError(
                f"state[{name!r}] is of type {type(part.value).__name__}: expected a torch module, an optimizer, or an "
                f"object with state_dict() and load_state_dict(). {_instead(part.value)}"
            )
        if type(part.value).__module__.startswith("deepspeed.") and hasattr(part.value, "param_groups"):
            # Its load_state_dict() takes the states of all ranks in a list: what is saved could not be loaded.
            raise ScriptRefusedError(
                f"state[{name!r}] is a {type(part.value).__name__} of DeepSpeed, which cannot be restored from its own "
                "state. Give holdfast.integrations.deepspeed.training_state(engine) in place of the whole state."
            )
        loaders.refuse_forgetful(name, part.value)
        self.name, self.value, self._part = name, part.value, part
        self._names: set[str] | None = None
        self._quiet = self._makes_later = self._merges = False
        self._live: dict[str, DTensor] = {}

    def encode(self, placing: Placing) -> Encoded:
        """Return the items to save: its state dictionary is read at every save."""
        state, before = self._state(), dict(placing.candidates)
        views = Views()
        encoder, nodes = self._written(state, placing, views)
        windows = views.arrays.overlapping()
        views.arrays.require_apart(views.addresses())
        together = views.overlapping()
        if together or windows:
            # One memory for several tensors: none of them is an item of its own, nor one that ranks may share.
            large = set(placing.candidates)
            placing.candidates.clear()
            placing.candidates.update(before)
            encoder, nodes = self._written(state, placing, Views(together), windows)
            # Nor at later saves, where windows may lie apart: items that come and go need a new plan each time.
            placing.loose |= large - placing.candidates.keys()
        # Names that come and go would need a new plan each time; the tree has the values anyway.
        names, self._names = self._names, set(encoder.stock.values)
        self._quiet = self._quiet or encoder.stock.many or (names is not None and names != self._names)
        return Encoded.by(encoder, nodes, stock=not self._quiet)

    def _state(self) -> Any:
        if self._names is not None:
            return self.value.state_dict()
        with loaders.saving(self.name):  # the first save
            return self.value.state_dict()

    def _written(
        self, state: Any, placing: Placing, views: Views, windows: Set[int] = frozenset()
    ) -> tuple[Encoder, dict[str, Node]]:
        encoder = Encoder(placing.other(), placing.rank, most_plain=MOST_PLAIN, views=views, windows=windows)
        return encoder, {self.name: encoder.part(self.name, state)}

    def want(self, known: Known, trees: Sequence[tuple[int, Node]], *, exact: bool) -> None:
        """Make room for what the checkpoint holds of the object.

        Args:
            known: the checkpoint.
            trees: those to restore from: of this rank alone, or of all ranks that saved it.
            exact: whether each rank takes its own. Else ``merge`` and ``split`` decide, also where all ranks saved
                equal values: what each of them took alone is another amount for another number of ranks.

        Raises:
            CheckpointError: it differs from rank to rank, and nothing defines which rank gets what now.
        """
        self._nodes = [node for _, node in trees]
        self._merges = not exact and self._part.merge is not None
        if not self._merges and len(trees) > 1 and _all_alike(self._nodes):
            self._nodes = self._nodes[:1]
        if len(self._nodes) > 1 and not self._merges:
            raise CheckpointError(
                f"state {self.name!r} differs from rank to rank, and was saved by {len(trees)} ranks, not by as many "
                f"as now: declare what belongs to which rank with holdfast.Part(..., merge=..., split=...) in its place"
            )
        named = [[*refs(node)] for node in self._nodes]
        # An object that is asked for its state may do more.
        asked = any(named) or (dist.is_initialized() and any(map(_has_weights, self._nodes)))
        live = self._tensors() if asked else {}
        self._live = {name: each for name, each in live.items() if isinstance(each, DTensor)}
        for node, names in zip(self._nodes, named, strict=True):
            lie = dict(strides(node))
            for name, device, placements in names:
                held = live.get(name)
                if held is not None and is_distributed(held):
                    known.targets[name] = held
                elif placements is not None and (held is None or held.shape != known.tensor(name)[0]):
                    raise CheckpointError(
                        f"{name}: it was saved as a part of a distributed tensor, and state_dict() has none of "
                        "this name and size yet: make it before Session.restore()"
                    )
                else:
                    known.targets[name] = known.allocate(name, device, None, stride=lie.get(name))

    def _tensors(self) -> dict[str, Tensor]:
        """Return the live tensors: only those that are parts of larger ones know which part."""
        encoder = Encoder(lambda path, _: dotted(path))
        encoder.part(self.name, self.value.state_dict())
        return {name: each for name, each in encoder.items.items() if isinstance(each, Tensor)}

    def load(self, tensors: Mapping[str, Any], rank: int, world_size: int) -> None:
        """Take the loaded values."""
        states = [decode(node, tensors) for node in self._nodes]
        state = divided(states[0], self._live, (self.name,))
        if self._merges:
            assert self._part.merge is not None
            assert self._part.split is not None
            state = self._part.split(self._part.merge(states), rank, world_size)
        self.give(state)

    def give(self, state: Any) -> None:
        """Have the object take its state."""
        with loaders.restoring(self.name) as loaded:
            try:
                self.value.load_state_dict(state)
            except Exception as error:  # the object's own error, which mostly names no object
                error.add_note(
                    f"raised by load_state_dict() of state[{self.name!r}] ({type(self.value).__name__})"
                )
                raise
        self._makes_later = bool(loaded)

    def settle(self) -> None:
        """Have it create what it creates when its state is read; torchdata's loaders wait for their first iteration."""
        if not self._makes_later:
            self.value.state_dict()


def _has_weights(node: Node) -> bool:
    """Return whether small tensors of numbers lie in the tree: not states of generators, which are no one's part."""
    return any(
        tag == "@raw" and getattr(torch, each[3]).is_floating_point and each[4] for tag, each in tagged(node)
    )


def _instead(value: Any) -> str:
    """Return what to give in place of a value that no restore could put back."""
    if isinstance(value, Mapping) and (value.keys() & {"param_groups"} or _of_tensors(value)):
        return "Give the module or optimizer itself, not what its state_dict() returns."
    if hasattr(value, "state_dict"):
        return "It has no load_state_dict(), so its state could not be put back."
    return (
        "Put plain values into an object of your own whose state_dict() returns them and whose load_state_dict() "
        "takes them back."
    )


def _of_tensors(value: Mapping[Any, Any]) -> bool:
    return bool(value) and all(isinstance(each, Tensor) for each in value.values())


def _all_alike(nodes: Sequence[Node]) -> bool:
    return all(alike(nodes[0], each) for each in nodes[1:])


def alike(left: Node, right: Node, seen: set[tuple[int, int]] | None = None) -> bool:
    """Return whether two trees hold equal values; items that one rank alone has are never equal to another's.

    ``seen``: pairs of nodes that are compared already: what is in several places of a tree is compared once.
    """
    if type(left) is not type(right) or (_is_ref(left) and left[1].startswith(OWN)):
        return False
    if isinstance(left, Tensor):
        return left.shape == right.shape and left.dtype == right.dtype and bool(torch.equal(left, right))
    if not isinstance(left, dict | list | tuple):
        # By their bits: numbers may be alike in all but the sign of a zero, and NaN is like nothing.
        return bool(left == right) if not isinstance(left, float | complex) else repr(left) == repr(right)
    seen = set() if seen is None else seen
    if (pair := (id(left), id(right))) in seen:
        return True
    seen.add(pair)
    if isinstance(left, dict):
        return list(left) == list(right) and all(alike(left[key], right[key], seen) for key in left)
    return _same_bytes(left, right) or (
        len(left) == len(right) and all(alike(*both, seen) for both in zip(left, right, strict=True))
    )


def _is_ref(node: Node) -> bool:
    return isinstance(node, tuple) and len(node) > 1 and node[0] == "@ref" and isinstance(node[1], str)


def _same_bytes(left: Node, right: Node) -> bool:
    """Return whether plain data is written alike, which is quick to check; equal values may be written otherwise."""
    if not (isinstance(left, tuple) and left and left[0] == "@plain"):
        return False
    written = dump_plain(left)
    return written is not None and written == dump_plain(right)
