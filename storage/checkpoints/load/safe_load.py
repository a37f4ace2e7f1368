"""The stock load planner, except that objects are unpickled with ``weights_only``: they cannot run code."""

from __future__ import annotations

import datetime
import decimal
import io
import pathlib
import pickle
import re
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.random import _pickle as np_random
from torch import Tensor
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import STORAGE_TYPES, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import (
    _create_chunk_list,
    _create_read_items,
    create_read_items_for_chunk_list,
)
from torch.distributed.tensor import DTensor

from holdfast.bounded_pickle import MaliciousPickleError
from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.compact import CompactMetadata
from holdfast.storage.checkpoints.load.bounded_objects import require_bounded
from holdfast.storage.checkpoints.load.coverage import Wanted, require_covered, require_size
from holdfast.storage.checkpoints.load.findings import first_line

# Beside what torch allows itself: plain values, NumPy arrays and generators (random state). None of them runs code.
_ALLOWED: list[Any] = [
    bytes,  # empty ones are pickled as a call
    complex,
    datetime.date,
    datetime.datetime,
    datetime.timedelta,
    datetime.timezone,
    decimal.Decimal,
    frozenset,
    pathlib.Path,
    pathlib.PosixPath,
    range,
    slice,
    np.ndarray,
    np.dtype,
    *{type(np.dtype(code)) for code in np.typecodes["All"] if code not in "OV"},
    np.array(1).__reduce__()[0],
    np.float64(1).__reduce__()[0],
    np_random.__bit_generator_ctor,
    np_random.__generator_ctor,
    np_random.__randomstate_ctor,
    *np_random.BitGenerators.values(),
]

_BROKEN = (
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    AttributeError,
    OverflowError,
    AssertionError,
)
"""Errors of readers that meet broken bytes."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def script_allows() -> list[str]:
    """Return names (``module.name``) of classes that the script allowed by ``torch.serialization.add_safe_globals``."""
    known = torch.serialization.get_safe_globals()
    named = [
        each[1] if isinstance(each, tuple) else f"{each.__module__}.{each.__qualname__}" for each in known
    ]
    return sorted(named)


def load_object(content: io.BytesIO, name: str) -> Any:
    """Load the object of item ``name``: plain values, tensors, NumPy arrays and generators, and what the script allows.

    Raises:
        CheckpointError: it holds anything else (the message explains how to allow it), is broken, or asks for
            more memory or time than its size explains.
    """
    try:
        require_bounded(content.getvalue(), script_allows)
    except MaliciousPickleError as error:
        raise CheckpointError(f"{name}: this object of the checkpoint cannot be read: {error}") from error
    content.seek(0)
    try:
        return _plain(content)
    except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, KeyError, IndexError):
        content.seek(0)
    try:
        with torch.serialization.safe_globals(_ALLOWED):
            return torch.load(content, map_location="cpu", weights_only=True)
    except _BROKEN as error:
        raise CheckpointError(
            f"{name}: this object of the checkpoint cannot be read: {first_line(error)}"
        ) from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{name}: it holds an object that a checkpoint is not trusted with ({_reason(error)}). Save plain "
            "values, or call torch.serialization.add_safe_globals([...]) at the beginning of the script."
        ) from error


class _PlainUnpickler(pickle.Unpickler):
    """Reads numbers, text, bytes and their tuples, lists and dictionaries, which most items are, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse all but what pickle's second protocol, torch's own, makes bytes with."""
        if (module, name) == ("_codecs", "encode"):
            return _bytes
        if (module, name) in (("__builtin__", "bytes"), ("builtins", "bytes")):
            return _no_bytes
        raise pickle.UnpicklingError(f"{module}.{name}")


def _bytes(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


def _plain(content: io.BytesIO) -> Any:
    """Return a plain value in torch's one-stream format; many times faster than ``torch.load``.

    Raises:
        pickle.UnpicklingError: it is not plain, or not in that format.
    """
    if _PlainUnpickler(content).load() != torch.serialization.MAGIC_NUMBER:
        raise pickle.UnpicklingError("not torch's one-stream format")
    protocol, _system, value, tensors = (_PlainUnpickler(content).load() for _ in range(4))
    if protocol != torch.serialization.PROTOCOL_VERSION or tensors:
        raise pickle.UnpicklingError("not plain")
    return value


class SafeLoadPlanner(DefaultLoadPlanner):
    """``DefaultLoadPlanner`` that unpickles nothing but data, and leaves no element as it was."""

    def create_local_plan(self) -> LoadPlan:
        """Return the plan of what this rank reads.

        Raises:
            UncoveredError: the checkpoint, or the part of it that this rank reads, lacks something.
            CheckpointError: a tensor was saved with another size, or was none.
        """
        assert self.metadata is not None
        saved = self.metadata.state_dict_metadata
        if self.flatten_state_dict and not self.state_dict.keys() <= saved.keys():
            with suppress(
                RuntimeError, ValueError
            ):  # torch 2.3 and before named lists otherwise: then take its names
                super().create_local_plan()
        wanted, items = Wanted(), []
        for name, target in self.state_dict.items():
            items += _reads(name, target, saved.get(name), wanted)
        require_covered(wanted, items, saved)
        return LoadPlan(items)

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Take the state, and of compact metadata the boxes that meet it.

        Raises:
            UncoveredError: they do not make up a tensor of the state.
        """
        super().set_up_planner(state_dict, metadata, is_coordinator)
        if isinstance(metadata, CompactMetadata):
            metadata.narrow(self.state_dict)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put an object where it belongs in the state."""
        name = read_item.dest_index.fqn
        loaded = load_object(value, name)
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[name], loaded)
        else:
            self.state_dict[name] = loaded


def _reads(name: str, target: Any, known: STORAGE_TYPES | None, wanted: Wanted) -> list[ReadItem]:
    """Return the read items of one entry of the state, and note in ``wanted`` what they must fill."""
    if isinstance(target, DTensor) and target.device_mesh.get_coordinate() is None:
        return []  # it lies on other ranks
    if known is None:
        wanted.absent[name] = target.numel() if isinstance(target, Tensor) else 1
        return []
    if not isinstance(known, TensorStorageMetadata):
        return _create_read_items(name, known, target)
    if not callable(getattr(target, "size", None)):
        raise CheckpointError(
            f"{name}: it was saved as a tensor of size {list(known.size)}, the state has a {type(target).__name__}"
        )
    require_size(name, known.size, target.size())
    boxes = _create_chunk_list(target)
    wanted.boxes[name] = boxes
    return create_read_items_for_chunk_list(name, known, boxes)


def _reason(error: Exception) -> str:
    """Return the part of torch's long message that names the object."""
    text = _COLOURS.sub("", str(error))
    found = re.search(
        r"WeightsUnpickler error: ([^\n]+?)(?: was not an allowed| by default|\.?$)", text, re.MULTILINE
    )
    return found[1] if found else text.partition("\n")[0]
