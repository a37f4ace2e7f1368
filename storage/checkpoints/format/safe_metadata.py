"""Reads a checkpoint's ``.metadata`` without running what a pickle may contain.

``.metadata`` is a pickle, and a pickle can call anything. Only the names that torch.distributed.checkpoint itself
writes into it are allowed here; every other one is refused before it is looked up. What it makes is not bounded: the
metadata of another program is read by :mod:`holdfast.storage.checkpoints.format.foreign_metadata`.
"""

from __future__ import annotations

import enum
import io
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata

from holdfast.errors import CheckpointError

_METADATA = "torch.distributed.checkpoint.metadata"

_ALLOWED = frozenset(
    {
        *(
            (_METADATA, name)
            for name in (
                "BytesStorageMetadata",
                "ChunkStorageMetadata",
                "Metadata",
                "MetadataIndex",
                "StorageMeta",
                "TensorProperties",
                "TensorStorageMetadata",
                "_MEM_FORMAT_ENCODING",
            )
        ),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.distributed.checkpoint.hf_storage", "_HFStorageInfo"),
        ("torch.serialization", "_get_layout"),
        ("torch", "Size"),
        ("torch", "device"),
        ("collections", "OrderedDict"),
        ("pathlib", "Path"),
        ("pathlib", "PosixPath"),
        # What our own shard files hold instead of _StorageInfo.
        ("holdfast.storage.checkpoints.format.layout", "Place"),
    }
)


_GETATTR = (("builtins", "getattr"), ("__builtin__", "getattr"))
"""How Python 3.11.0 to 3.11.3 write a member of an enumeration."""


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _GETATTR:
            return _member
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        raise pickle.UnpicklingError(
            f"it refers to {module}.{name}, which no checkpoint's metadata needs: it may have been tampered with"
        )


def _member(kind: object, name: str) -> enum.Enum:
    """Stand in for ``getattr``: return only members of an enumeration, which itself had to be allowed."""
    if not (isinstance(kind, enum.EnumType) and name in kind.__members__):
        raise pickle.UnpicklingError(
            f"it asks for {name!r} of {kind!r}, and no checkpoint's metadata does: it may have been tampered with"
        )
    found: enum.Enum = kind.__members__[name]
    return found


def load_metadata(data: bytes, where: str = "checkpoint") -> Metadata:
    """Return the metadata in ``data``.

    Args:
        data: content of ``.metadata``, or of a shard file's own.
        where: names the checkpoint in errors.

    Raises:
        CheckpointError: it refers to anything but the classes of a checkpoint's metadata, or is no metadata.
    """
    try:
        metadata = _Restricted(io.BytesIO(data)).load()
    except Exception as error:  # a damaged pickle raises nearly anything
        raise CheckpointError(f"{where}: its .metadata is refused: {error}.") from error
    if not isinstance(metadata, Metadata):
        raise CheckpointError(
            f"{where}: its .metadata holds a {type(metadata).__name__}, expected checkpoint metadata."
        )
    return metadata
