"""Writes the trees of a state; :mod:`~holdfast.storage.checkpoints.format.structure` describes the nodes of a tree."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.array_views import WINDOW, root_of
from holdfast.storage.checkpoints.format.kind import ValueKind
from holdfast.storage.checkpoints.format.kinds import PLAIN, kind_of
from holdfast.storage.checkpoints.format.layout import dump_object
from holdfast.storage.checkpoints.format.places import Path, dotted, refused
from holdfast.storage.checkpoints.format.plain_data import CONTAINERS, SERIES, is_flat, kinds_inside
from holdfast.storage.checkpoints.format.raw_tensors import RawWriter, Views, is_plain
from holdfast.storage.checkpoints.format.script_classes import class_name
from holdfast.storage.checkpoints.format.stock_names import StockNames, has_items
from holdfast.storage.checkpoints.format.structure import ITEMS, OWN, Node, own_name, tagged
from holdfast.storage.checkpoints.format.tensor_facts import (
    attributes_of,
    is_distributed,
    is_transparent,
    is_unreduced,
    plain_placements,
    unusual_stride,
)
from holdfast.storage.checkpoints.load.safe_load import load_object

Place = Callable[[Path, Tensor], str | None]
"""The name of the item under which a tensor is saved; None: in the tree itself."""

MOST_DEPTH = 200
_PLAIN = frozenset(PLAIN)
_ENDLESS = ("it contains itself, or is nested too deeply", "save plain, finite data")


class Encoder:
    """Writes the trees of one state, and collects the tensors and the plain values that are items."""

    def __init__(
        self,
        place: Place,
        rank: int = 0,
        *,
        most_plain: int = sys.maxsize,
        whole: bool = True,
        views: Views | None = None,
        windows: Set[int] = frozenset(),
        noted: bool = True,
    ) -> None:
        """Prepare for one state.

        Args:
            place: where tensors go.
            rank: this one.
            most_plain: the most plain values that get names of their own.
            whole: whether plain data becomes a single node, however much it is.
            views: takes notice of tensors and arrays; tensors that it knows to overlap lie in the tree, together.
            windows: identities of numpy arrays of which others are windows.
            noted: whether attributes that the script has set on tensors are part of the state.
        """
        self._place, self._rank, self._whole = place, rank, whole
        self._alone, self._noted = False, noted
        self.inlined = False
        """Whether elements of a tensor lie in a tree."""
        self.items: dict[str, Any] = {}
        """Tensors by name."""
        self.paths: dict[str, Path] = {}
        """By name, where in the nested state it was."""
        self.stock = StockNames(self.items, self.paths, most_plain)
        self._windows = windows
        self._views, self._raw = views, RawWriter(views)
        self._known: dict[tuple[Any, ...], str] = {}
        self._nodes: dict[int, Node] = {}
        self._open: set[int] = set()
        self._kept: list[object] = []
        self._trusted: set[tuple[str, type]] = set()

    def part(self, name: str, value: Any) -> Node:
        """Return the tree of one part of the state.

        Raises:
            CheckpointError: something in it cannot be saved; names its path.
        """
        return self.part_of(value, (name,))

    def part_of(self, value: Any, path: Path, *, opened: bool = False) -> Node:
        """Return the tree as :meth:`part` does, for a deeper value: what it shares with others is saved for both.

        Args:
            value: of the state.
            path: where it is.
            opened: a dictionary becomes a node whose entries can be looked at, also when it is plain data.
        """
        self._known.clear()
        self._nodes.clear()
        self._kept.clear()
        self._raw.forget()
        return self.encode(value, path, opened=opened)

    def encode(self, value: Any, path: Path, *, stock: bool = True, opened: bool = False) -> Node:
        """Return the tree of a value at ``path``; ``stock``: whether stock torch would look for items inside."""
        kind = type(value)
        if kind in _PLAIN:
            if stock:
                self.stock.note(value, path)
            return value
        if isinstance(value, Tensor):
            return self.tensor(value, path)
        if (known := self._nodes.get(id(value))) is not None:
            if stock and kind in CONTAINERS:
                self._note_plain(value, path, MOST_DEPTH)
            return known
        if id(value) in self._open or len(self._open) > MOST_DEPTH:
            raise refused(path, *_ENDLESS)
        self._open.add(id(value))
        try:
            node = self._container(value, kind, path, stock, whole=self._whole and not opened)
        except RecursionError:
            raise refused(path, *_ENDLESS) from None
        finally:
            self._open.discard(id(value))
        if not (isinstance(node, tuple) and node[0] == "@plain"):  # which is the value itself
            self._nodes[id(value)] = node
            self._kept.append(value)  # so that no later one gets its identity
        return node

    def _container(self, value: Any, kind: type, path: Path, stock: bool, *, whole: bool) -> Node:
        if whole and kind in CONTAINERS:
            most_depth = MOST_DEPTH + 2 - len(self._open)
            plain = self._note_plain(value, path, most_depth) if stock else kinds_inside(value, most_depth)
            if plain is not None:
                return "@plain", value
        if kind in SERIES and is_flat(value):
            if stock:
                self.stock.note(value, path)
            return list(value) if kind is list else ("tuple", list(value))
        if kind is list:
            if stock and not has_items(value):
                self.stock.note(value, path)
                stock = False
            return [self.encode(each, (*path, number), stock=stock) for number, each in enumerate(value)]
        if kind is dict and all(type(each) is str for each in value):
            return {name: self.encode(each, (*path, name), stock=stock) for name, each in value.items()}
        if (known := self._kind_of(value, path)) is not None:
            within = stock and isinstance(value, Mapping)
            if stock and kind is tuple and not has_items(value):
                self.stock.note(value, path)
            return known.tag, self._down(known, value, path, within=within)
        return "@opaque", self._opaque(value, path)

    def _kind_of(self, value: Any, path: Path) -> ValueKind | None:
        if type(value) is np.ndarray and self._views is not None:
            self._views.arrays.note(value, path)
            if (root := root_of(value)) is not value and id(root) in self._windows:
                return WINDOW
        return kind_of(value)

    def _note_plain(self, value: Any, path: Path, most_depth: int) -> set[type] | None:
        """Name plain data for stock torch; return its types, None when it is not plain."""
        kinds = kinds_inside(value, most_depth)
        if kinds is not None:
            (self.stock.note_all if dict in kinds else self.stock.note)(value, path)
        return kinds

    def _down(self, known: ValueKind, value: Any, path: Path, *, within: bool) -> Any:
        try:
            return known.down(
                value,
                lambda each, at: self.encode(each, (*path, at) if at else path, stock=within and bool(at)),
            )
        except CheckpointError as error:
            if error.args and str(error.args[0]).startswith("state "):
                raise
            raise refused(path, str(error)) from error
        except (TypeError, ValueError, AttributeError) as error:  # of numpy, or of a class of the script
            kind = type(value)
            raise refused(
                path, f"an object of type {kind.__module__}.{kind.__qualname__}: {error}"
            ) from error

    def tensor(self, value: Tensor, path: Path) -> Node:
        """Return the tree of a tensor; one in two places of a part is one node where nothing is an item."""
        if (known := self._nodes.get(id(value))) is not None:
            return known
        node = self._bare(value, path)
        if self._noted and (attributes := attributes_of(value)):
            inside = {
                name: self.encode(each, (*path, name), stock=False) for name, each in attributes.items()
            }
            node = "@attributes", node, inside
        if node[0] not in ITEMS and not any(tag in ITEMS for tag, _ in tagged(node)):
            self._nodes[id(value)] = node
            self._kept.append(value)
        return node

    def _bare(self, value: Tensor, path: Path) -> Node:  # noqa: PLR0911  (a case per kind)
        if is_lazy(value):
            raise refused(
                path, "it is not initialised yet", "run a forward pass before the first checkpoint()"
            )
        if type(value) is Parameter:
            return "@param", self.tensor(value.data, path), value.requires_grad
        if value.is_nested:
            node = self._inline(value.detach(), path)
            return ("@grad", node) if value.requires_grad and value.is_leaf else node
        if isinstance(value, DTensor) and is_traceable_wrapper_subclass(value._local_tensor):
            return self._local(value, path, self._subclass)
        if isinstance(value, DTensor) and is_unreduced(value):
            return self._local(value, path, self._plain_tensor)
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
        if is_transparent(value):
            return "@as", class_name(type(value)), self.tensor(value.as_subclass(Tensor), path)
        raise refused(
            path,
            f"a tensor of the class {type(value).__module__}.{type(value).__qualname__}, which does not say what "
            "it consists of",
            "give it __tensor_flatten__ and __tensor_unflatten__, or save plain tensors",
        )

    def _ref(self, value: Tensor, path: Path) -> Node:
        if self._views is not None and is_plain(value) and not is_distributed(value):
            if self._views.piece(value) is not None:
                return self._inline(value, path)
            self._views.note(value)
        name = self._place(path, value) if is_plain(value) or is_distributed(value) else None
        if name is None:
            return self._inline(value, path)
        name = self._free(own_name(self._rank, name) if self._alone and not name.startswith(OWN) else name)
        self.items[name] = value
        # Stock torch rebuilds the name from the path. At this one it finds another rank's, or none.
        self.paths[name] = (name,) if name.startswith(OWN) else path
        placements = plain_placements(value) if isinstance(value, DTensor) else None
        alias = self._same(value, name)
        if alias is not None:
            return "@same", name, alias
        stride = unusual_stride(value)
        return "@ref", name, value.device.type, placements, *([stride] if stride else [])

    def _same(self, value: Tensor, name: str) -> str | None:
        """Return the first name of exactly these elements, if they are in this part already."""
        if is_distributed(value) or value.numel() == 0:
            return None
        turned = value.is_conj(), value.is_neg()
        what = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride(), value.device, turned)
        self._kept.append(value)
        first = self._known.setdefault(what, name)
        return None if first == name else first

    def _free(self, name: str) -> str:
        found, number = name, 1
        while found in self.items or found in self.stock.values:
            number += 1
            found = f"{name}#{number}"
        return found

    def _inline(self, value: Tensor, path: Path) -> Node:
        if value.is_meta:
            raise refused(path, "a meta tensor has no elements", "materialise it (to_empty) before saving")
        self.inlined = True
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

    def _local(self, value: DTensor, path: Path, write: Callable[[Tensor, Path], Node]) -> Node:
        # What is inside has no place in the whole tensor: this rank alone has it.
        self._alone = True
        try:
            local = write(value._local_tensor, path)
        finally:
            self._alone = False
        return "@local", local, plain_placements(value), tuple(value.shape), tuple(value.stride())

    def _opaque(self, value: Any, path: Path) -> Any:
        """Return an object that the safe unpickler makes again, tried once for each type and path."""
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
