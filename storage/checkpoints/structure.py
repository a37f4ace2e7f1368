"""The structure of what is saved, as plain data beside the tensors: the saved state rules what comes back.

``torch.distributed.checkpoint`` loads into the state that a script has just made and drops what that state does not
name. A state that grew, shrank or changed its types since the script began is not the fresh one. So each rank saves,
for every part of its state, a tree of nodes that says what the part consisted of:

- ``None``, booleans, numbers, text and bytes are themselves; a list is a list, and a dictionary with
  text keys a dictionary;
- a tensor that is an item of the checkpoint is ``("@ref", name, device, placements)``, and its strides where it does
  not lie row by row; one that lies in the tree itself
  (small, of changing shape, of a layout that items cannot have) is ``("@raw", ...)`` or ``("@layout", ...)`` of
  :mod:`~holdfast.storage.checkpoints.raw_tensors`;
- anything else is ``(tag, data)`` of :mod:`~holdfast.storage.checkpoints.kinds`.
"""

from __future__ import annotations

import io
import math
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn import Parameter
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.kinds import PLAIN, by_tag, class_name, find_class, kind_of
from holdfast.storage.checkpoints.layout import dump_object
from holdfast.storage.checkpoints.raw_tensors import RawReader, RawWriter, is_plain
from holdfast.storage.checkpoints.safe_load import load_object

Node = Any
Path = tuple[str | int, ...]
Place = Callable[[Path, Tensor], str | None]
"""The name of the item under which a tensor is saved; None: in the tree itself."""

PREFIX = "structure/"
OWN = "own/"
"""Before the names of tensors that one rank alone has."""
MOST_DEPTH = 200
_PLAIN = frozenset(PLAIN)
_ENDLESS = ("it contains itself, or is nested too deeply", "save plain, finite data")


def key(rank: int) -> str:
    """Name of a rank's structure in a checkpoint."""
    return f"{PREFIX}{rank}"


def saved_ranks(names: Iterable[str]) -> list[int]:
    """Ranks whose structure is among a checkpoint's flat key ``names``."""
    return sorted({int(each.removeprefix(PREFIX).split(".")[0]) for each in names if each.startswith(PREFIX)})


def own_name(rank: int, name: str) -> str:
    """Name of an item that ``rank`` alone has."""
    return f"{OWN}{rank}.{name}"


def is_distributed(value: object) -> bool:
    """Whether a tensor is a part of a larger one, or describes its parts itself."""
    return isinstance(value, DTensor) or hasattr(value, "__create_write_items__") or _is_sharded(value)


def _is_sharded(value: object) -> bool:
    return type(value).__name__ == "ShardedTensor"


class Encoder:
    """Writes the trees of one state, and collects the tensors and the plain values that are items."""

    def __init__(self, place: Place, rank: int = 0, *, most_plain: int = sys.maxsize) -> None:
        """``most_plain``: so many plain values get names of their own."""
        self._place, self._rank, self._most_plain = place, rank, most_plain
        self._alone = False
        self.items: dict[str, Any] = {}
        """Tensors by name."""
        self.plain: dict[str, Any] = {}
        """Plain values by the names that stock torch gives them: for readers other than Holdfast."""
        self.paths: dict[str, Path] = {}
        """By name, where in the nested state it was."""
        self._raw = RawWriter()
        self.many = False
        """Whether there were too many plain values to give each a name of its own."""
        self._known: dict[tuple[Any, ...], str] = {}
        self._open: set[int] = set()
        self._kept: list[object] = []
        self._trusted: set[tuple[str, type]] = set()

    def part(self, name: str, value: Any) -> Node:
        """The tree of one part of the state.

        Raises:
            CheckpointError: something in it cannot be saved; names its path.
        """
        return self.part_of(value, (name,))

    def part_of(self, value: Any, path: Path) -> Node:
        """As :meth:`part`, of something that lies deeper: what it has in common with others is saved for both."""
        self._known.clear()
        self._kept.clear()
        self._raw.forget()
        return self.encode(value, path)

    def encode(self, value: Any, path: Path, *, stock: bool = True) -> Node:
        """The tree of a value at ``path``; ``stock``: whether stock torch would look for items inside."""
        kind = type(value)
        if kind in _PLAIN:
            if stock:
                self._note(value, path)
            return value
        if isinstance(value, Tensor):
            return self.tensor(value, path)
        if id(value) in self._open or len(self._open) > MOST_DEPTH:
            raise refused(path, *_ENDLESS)
        self._open.add(id(value))
        try:
            return self._container(value, kind, path, stock)
        except RecursionError:
            raise refused(path, *_ENDLESS) from None
        finally:
            self._open.discard(id(value))

    def _container(self, value: Any, kind: type, path: Path, stock: bool) -> Node:
        if kind in (list, tuple) and all(type(each) in _PLAIN for each in value):
            if stock:
                self._note(value, path)
            return list(value) if kind is list else ("tuple", list(value))
        if kind is list:
            if stock and not _has_items(value):
                self._note(value, path)
                stock = False
            return [self.encode(each, (*path, number), stock=stock) for number, each in enumerate(value)]
        if kind is dict and all(type(each) is str for each in value):
            return {name: self.encode(each, (*path, name), stock=stock) for name, each in value.items()}
        if (known := kind_of(value)) is not None:
            within = stock and isinstance(value, Mapping)
            if stock and kind is tuple and not _has_items(value):
                self._note(value, path)
            try:
                return known.tag, known.down(
                    value,
                    lambda each, at: self.encode(
                        each, (*path, at) if at else path, stock=within and bool(at)
                    ),
                )
            except CheckpointError as error:
                if error.args and str(error.args[0]).startswith("state "):
                    raise
                raise refused(path, str(error)) from error
        return "@opaque", self._opaque(value, path)

    def _note(self, value: Any, path: Path) -> None:
        if len(self.plain) >= self._most_plain:
            self.many = True
            return
        name = dotted(path)
        if name not in self.plain and name not in self.items:
            self.plain[name] = value
            self.paths[name] = path

    def tensor(self, value: Tensor, path: Path) -> Node:
        """The tree of a tensor."""
        if is_lazy(value):
            raise refused(
                path, "it is not initialised yet", "run a forward pass before the first checkpoint()"
            )
        if value.is_nested:
            return self._inline(value, path)
        if type(value) is Parameter:
            return "@param", self.tensor(value.data, path), value.requires_grad
        if isinstance(value, DTensor) and is_traceable_wrapper_subclass(value._local_tensor):
            return self._local_subclass(value, path)
        if is_traceable_wrapper_subclass(value) and not is_distributed(value):
            return self._subclass(value, path)
        if is_distributed(value):
            return self._ref(value, path)
        return self._plain_tensor(value, path)

    def _plain_tensor(self, value: Tensor, path: Path) -> Node:
        if type(value) is Tensor:
            if value.requires_grad and value.is_leaf:
                return "@grad", self._ref(value.detach(), path)
            return self._ref(value.detach(), path)
        if _is_transparent(value):
            return "@as", class_name(type(value)), self.tensor(value.as_subclass(Tensor), path)
        raise refused(
            path,
            f"a tensor of the class {type(value).__module__}.{type(value).__qualname__}, which does not say what "
            "it consists of",
            "give it __tensor_flatten__ and __tensor_unflatten__, or save plain tensors",
        )

    def _ref(self, value: Tensor, path: Path) -> Node:
        name = self._place(path, value) if is_plain(value) or is_distributed(value) else None
        if name is None:
            return self._inline(value, path)
        name = self._free(own_name(self._rank, name) if self._alone and not name.startswith(OWN) else name)
        self.items[name] = value
        self.paths[name] = path
        placements = _placements(value) if isinstance(value, DTensor) else None
        alias = self._same(value, name)
        if alias is not None:
            return "@same", name, alias
        stride = _unusual_stride(value)
        return "@ref", name, value.device.type, placements, *([stride] if stride else [])

    def _same(self, value: Tensor, name: str) -> str | None:
        """The first name of the very same elements, if they are in this part already."""
        if is_distributed(value) or value.numel() == 0:
            return None
        what = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride(), value.device)
        self._kept.append(value)
        first = self._known.setdefault(what, name)
        return None if first == name else first

    def _free(self, name: str) -> str:
        found, number = name, 1
        while found in self.items or found in self.plain:
            number += 1
            found = f"{name}#{number}"
        return found

    def _inline(self, value: Tensor, path: Path) -> Node:
        if value.is_meta:
            raise refused(path, "a meta tensor has no elements", "materialise it (to_empty) before saving")
        node = self._raw.node(value)
        if node is None:
            raise refused(path, f"a tensor of layout {value.layout}", "convert it with to_dense()")
        return node

    def _subclass(self, value: Tensor, path: Path) -> Node:
        names, context = value.__tensor_flatten__()  # type: ignore[attr-defined]
        return (
            "@subclass",
            class_name(type(value)),
            self.encode(context, (*path, "context"), stock=False),
            {name: self.encode(getattr(value, name), (*path, name), stock=False) for name in names},
            tuple(value.shape),
            tuple(value.stride()),
            value.requires_grad,
        )

    def _local_subclass(self, value: DTensor, path: Path) -> Node:
        # What is inside has no place in the whole tensor: this rank alone has it.
        self._alone = True
        try:
            local = self._subclass(value._local_tensor, path)
        finally:
            self._alone = False
        return "@local", local, _placements(value), tuple(value.shape), tuple(value.stride())

    def _opaque(self, value: Any, path: Path) -> Any:
        """An object that the safe unpickler makes again, tried once for each type and path."""
        what = (dotted(path), type(value))
        if what not in self._trusted:
            try:
                load_object(io.BytesIO(dump_object(value)), dotted(path))
            except Exception as error:  # pickle raises nearly anything
                reason = str(error).splitlines()[0] if isinstance(error, pickle.PicklingError) else ""
                raise refused(
                    path,
                    f"an object of type {type(value).__module__}.{type(value).__qualname__}, which a checkpoint is not "
                    f"trusted with{': ' if reason else ''}{reason}",
                    "save plain values instead, or, if it can be pickled, call "
                    "torch.serialization.add_safe_globals([...]) at the beginning of the script",
                ) from error
            self._trusted.add(what)
        return value


def refused(path: Path, what: str, instead: str = "") -> CheckpointError:
    """The error for a part of the state that cannot be saved."""
    return CheckpointError(f"state {dotted(path)!r}: {what}.{f' To save it, {instead}.' if instead else ''}")


def dotted(path: Path) -> str:
    """The name of a place in the nested state."""
    return ".".join(map(str, path))


def _is_transparent(value: Tensor) -> bool:
    """Whether a subclass has no more than the tensor itself."""
    return (
        type(value).__torch_dispatch__ is Tensor.__torch_dispatch__
        and not getattr(value, "__dict__", None)
        and type(value).__new__ is Tensor.__new__
    )


def _has_items(values: Any) -> bool:
    """Whether stock torch looks for items inside a list."""
    return any(
        isinstance(each, Mapping | Tensor) or (isinstance(each, list | tuple) and _has_items(each))
        for each in values
    ) or not all(type(each) in (*PLAIN, list, tuple) for each in values)


def _placements(value: DTensor) -> list[tuple[Any, ...]]:
    told: list[tuple[Any, ...]] = []
    for each in value.placements:
        if type(each) is Shard:
            told.append(("S", each.dim))
        elif isinstance(each, Partial):
            told.append(("P", str(each.reduce_op)))
        elif isinstance(each, Replicate):
            told.append(("R",))
        else:
            told.append((type(each).__name__, repr(each)))
    return told


def placements_of(told: Any) -> tuple[Any, ...] | None:
    """The placements that :class:`Encoder` wrote; None when there is one of another kind."""
    makers: dict[str, Callable[..., Any]] = {"S": Shard, "R": Replicate, "P": Partial}
    if any(each[0] not in makers for each in told):
        return None
    return tuple(makers[each[0]](*each[1:]) for each in told)


def decode(node: Node, tensors: Mapping[str, Any], mesh: Any = None) -> Any:
    """The value of one tree; see :class:`Decoder`."""
    return Decoder(tensors).value(node, mesh)


class Decoder:
    """Makes the values of trees again, in the order in which they were written."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        """For trees that refer to these items, by name."""
        self._tensors = tensors
        self._raw = RawReader()

    def value(self, node: Node, mesh: Any = None) -> Any:
        """The value of a tree.

        Args:
            node: as :class:`Encoder` wrote it.
            mesh: device mesh of tensors whose local part is of a class of its own.

        Raises:
            CheckpointError: an item is missing, or a class of the script is.
        """
        if isinstance(node, tuple):
            if node and isinstance(node[0], str) and node[0].startswith("@"):
                return self._special(node, mesh)
            return by_tag(node[0]).up(node[1], lambda each: self.value(each, mesh))
        if isinstance(node, list):
            return [self.value(each, mesh) for each in node]
        if isinstance(node, dict):
            return {name: self.value(each, mesh) for name, each in node.items()}
        return node

    def _special(self, node: Node, mesh: Any) -> Any:
        made = _MAKERS.get(node[0])
        if made is None:
            raise CheckpointError(
                f"it holds a {node[0]!r}, which this version of Holdfast does not know: use a newer one"
            )
        return made(self, node, mesh)

    def _item(self, node: Node, _: Any) -> Any:
        name = node[1] if node[0] != "@same" else node[2]
        if name not in self._tensors:
            raise CheckpointError(f"{name}: its structure names it, but it was not loaded")
        return self._tensors[name]

    def _strided(self, node: Node, _: Any) -> Tensor:
        return self._raw.strided(node)

    def _layout(self, node: Node, _: Any) -> Tensor:
        return self._raw.layout(node)

    def _param(self, node: Node, mesh: Any) -> Parameter:
        return Parameter(self.value(node[1], mesh), requires_grad=node[2])

    def _grad(self, node: Node, mesh: Any) -> Tensor:
        found: Tensor = self.value(node[1], mesh)
        return found.requires_grad_()

    def _as(self, node: Node, mesh: Any) -> Tensor:
        kind = find_class(node[1], lambda each: issubclass(each, Tensor), "tensor")
        found: Tensor = self.value(node[2], mesh).as_subclass(kind)
        return found

    def _opaque(self, node: Node, _: Any) -> Any:
        return node[1]

    def _local(self, node: Node, mesh: Any) -> DTensor:
        placements = placements_of(node[2])
        if mesh is None or placements is None:
            raise CheckpointError(
                "a distributed tensor of a class of its own can be restored in its old layout only"
            )
        local = self.value(node[1], mesh)
        return DTensor.from_local(
            local, mesh, placements, shape=torch.Size(node[3]), stride=node[4], run_check=False
        )

    def _subclass(self, node: Node, mesh: Any) -> Tensor:
        _, name, context, inner, size, stride, requires_grad = node
        kind = find_class(
            name, lambda each: issubclass(each, Tensor) and hasattr(each, "__tensor_unflatten__"), "tensor"
        )
        told = self.value(context, mesh)
        made: Tensor = kind.__tensor_unflatten__(
            {attribute: self.value(each, mesh) for attribute, each in inner.items()},
            told,
            torch.Size(size),
            stride,
        )
        return made.requires_grad_() if requires_grad else made


_MAKERS: dict[str, Callable[[Decoder, Node, Any], Any]] = {
    "@ref": Decoder._item,
    "@same": Decoder._item,
    "@object": Decoder._item,
    "@raw": Decoder._strided,
    "@layout": Decoder._layout,
    "@param": Decoder._param,
    "@grad": Decoder._grad,
    "@as": Decoder._as,
    "@opaque": Decoder._opaque,
    "@local": Decoder._local,
    "@subclass": Decoder._subclass,
}


def refs(node: Node) -> Iterator[tuple[str, str, Any]]:
    """Name, device and placements of every item that a tree refers to."""
    return ((each[1], each[2], each[3]) for each in _tagged(node, "@ref"))


def strides(node: Node) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and strides of every item that did not lie in memory row by row.

    Sums of products come out different in the last bits where a matrix lies the other way.
    """
    return ((each[1], tuple(each[4])) for each in _tagged(node, "@ref") if len(each) > 4)


def aliases(node: Node) -> Iterator[str]:
    """Names of items whose elements another item of the same part has as well: nothing refers to them."""
    return (each[1] for each in _tagged(node, "@same"))


def _tagged(node: Node, tag: str) -> Iterator[Any]:
    if isinstance(node, tuple) and node and node[0] == tag:
        yield node
    elif isinstance(node, tuple | list):
        for each in node:
            yield from _tagged(each, tag)
    elif isinstance(node, dict):
        for each in node.values():
            yield from _tagged(each, tag)


def _unusual_stride(value: Tensor) -> tuple[int, ...] | None:
    if is_distributed(value) or value.is_contiguous():
        return None
    # The same order of dimensions, without the gaps of a part of a larger tensor.
    like = torch.empty_like(value, device="meta")
    return None if like.is_contiguous() else tuple(like.stride())


def nbytes_of(value: Tensor) -> int:
    """Bytes of the elements of a tensor."""
    return math.prod(value.shape) * value.dtype.itemsize
