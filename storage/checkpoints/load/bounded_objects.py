"""Refuses objects of a checkpoint whose reading would take memory or time that their size does not explain.

Readers restricted to data still do what a few bytes ask: a memo of gigabytes for one number, ``bytearray(n)``, a set of
``range(n)``, a tensor larger than its storage, a key whose hash takes hours. So the operations are first played with
:mod:`holdfast.bounded_pickle`: what is called here makes stand-ins, after a look at its arguments. Names that torch's
reader refuses are left to it, and its message.
"""

from __future__ import annotations

import _compat_pickle
import io
import struct
import zipfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.random import _pickle as np_random

from holdfast.bounded_pickle import Limits, MaliciousPickleError, PickledKind, load_next
from holdfast.storage.checkpoints.load.stand_in_calls import BUILDS, CALLS, OF_KEYS
from holdfast.storage.checkpoints.load.stand_ins import StandIn, StorageStandIn, nothing, thing

MAX_DEPTH = 1000
"""Levels; a save refuses more than 200 (``MOST_DEPTH``), and Python's own pickle about 1000."""
BYTES_PER_BYTE = 64
"""Memory that an object may take for each byte of its item."""
SPARE_BYTES = 1 << 20
"""Memory that any object may take beside."""
_MOST_PIECES = 5
"""Pickles in torch's one-stream format: magic number, version, system, the object, the names of its storages."""
_LIMITS = Limits(depth=MAX_DEPTH, integer_bits=None, any_key=True)


class _UnknownNameError(Exception):
    """It names what torch's reader refuses at this place."""


def require_bounded(content: bytes, allowed: Callable[[], list[str]]) -> None:
    """Raise an error for an object that asks for more than its size explains.

    Args:
        content: as ``torch.save`` wrote it, in either of its formats; zeros may follow.
        allowed: returns the names that the script allows beside torch's and ours.

    Raises:
        MaliciousPickleError: it asks for more, or is broken.
    """
    archive = content[:2] == b"PK"
    guard = _Guard(len(content), allowed, filled=archive)
    try:
        if archive:
            guard.play(io.BytesIO(_record(content)), 1)
        else:
            guard.play(io.BytesIO(content), _MOST_PIECES)
    except _UnknownNameError:
        return


def _record(content: bytes) -> bytes:
    """Return the pickle in an archive of torch, whose records are not compressed.

    Raises:
        MaliciousPickleError: they are, or claim to be larger than the archive, or there is no pickle.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            if any(each.compress_type != zipfile.ZIP_STORED for each in entries):
                raise MaliciousPickleError("its records are compressed, which torch's are not: refused")
            if sum(each.file_size for each in entries) > len(content):
                raise MaliciousPickleError("its records claim to be larger than the archive: refused")
            [name] = [each.filename for each in entries if each.filename.split("/")[1:] == ["data.pkl"]]
            return archive.read(name)
    except (
        zipfile.BadZipFile,
        ValueError,
        RuntimeError,
        OSError,
        EOFError,
        OverflowError,
        struct.error,
    ) as error:
        raise MaliciousPickleError(f"no archive of torch: {error!s:.100}") from None


class _Guard:
    """Plays the pickles of one object."""

    def __init__(self, size: int, allowed: Callable[[], list[str]], *, filled: bool) -> None:
        self.filled = filled
        """Whether memory of tensors is read before the tensors are made, as from archives."""
        self._size, self._allowed = size, allowed
        self._left = BYTES_PER_BYTE * size + SPARE_BYTES
        self._storages: dict[Any, StorageStandIn] = {}
        self._stored_nbytes = 0
        self._known: dict[tuple[str, str], Any] = {}

    def play(self, stream: io.BytesIO, pieces: int) -> None:
        """Play so many pickles, one behind the other."""
        for _ in range(pieces):
            load_next(stream, self._size, kinds=self._named, persistent=self._stored, limits=_LIMITS)

    def _named(self, module: str, name: str) -> Any:
        if (module, name) not in self._known:
            self._known[module, name] = self._find(module, name)
        return self._known[module, name]

    def _find(self, module: str, name: str) -> Any:
        module, name = _compat_pickle.NAME_MAPPING.get(
            (module, name), (_compat_pickle.IMPORT_MAPPING.get(module, module), name)
        )
        path = f"{module}.{name}"
        if (call := CALLS.get(path)) is not None:
            return PickledKind(
                path, call=partial(call, self), build=BUILDS.get(path), of_keys=path in OF_KEYS
            )
        if path in BUILDS:
            return PickledKind(path, build=BUILDS[path])
        if module in ("torch", "torch.storage") and name.endswith("Storage"):
            return StorageStandIn(
                0, (getattr(getattr(torch, name, None), "dtype", None) or torch.uint8).itemsize
            )
        if path in _of_torch() or path in _ours():
            return PickledKind(path)
        if path in self._allowed():
            return PickledKind(
                path, call=thing, blank=thing, blank_of=True, build=nothing, may_refer_back=True
            )
        raise _UnknownNameError

    def spend(self, nbytes: int) -> None:
        """Count memory that is taken without bytes to explain it."""
        self._left -= nbytes
        if self._left < 0:
            raise MaliciousPickleError(
                f"it asks for more memory than {BYTES_PER_BYTE} times its {self._size} bytes: refused"
            )

    def _stored(self, identifier: Any) -> StandIn:
        if not isinstance(identifier, tuple) or len(identifier) not in (5, 6):
            raise MaliciousPickleError("it refers to an object outside of it that is no storage: refused")
        _, kind, key, _, elements = identifier[:5]
        if not isinstance(kind, StorageStandIn) or type(elements) is not int or elements < 0:
            raise MaliciousPickleError("it has a storage of no known type or size: refused")
        if key not in self._storages:
            self._stored_nbytes += elements * kind.itemsize
            if self._stored_nbytes > self._size:
                raise MaliciousPickleError(
                    f"its tensors take {self._stored_nbytes} bytes, and it has {self._size} itself: refused"
                )
            self._storages[key] = StorageStandIn(elements, kind.itemsize)
        return self._storages[key]


@cache
def _of_torch() -> frozenset[str]:
    """Return the names that torch's reader allows by itself."""
    return frozenset(torch._weights_only_unpickler._get_allowed_globals())


@cache
def _ours() -> frozenset[str]:
    """Return the names of NumPy's classes, which are never called: types of arrays and of generators."""
    kinds: Sequence[Any] = (np.ndarray, *np_random.BitGenerators.values())
    return frozenset(f"{each.__module__}.{each.__qualname__}" for each in kinds)
