"""A store from five operations: for protocols other than S3, in packages of their own."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from holdfast.errors import UnavailableError, UnknownError
from holdfast.storage.objects.base import Body, ObjectInfo, Unfinished
from holdfast.storage.objects.deadline import Deadline
from holdfast.storage.objects.landing import landing

if TYPE_CHECKING:
    from typing_extensions import Buffer

CHUNK_BYTES = 16 << 20
"""Read at once where the caller does not say how much."""
SEND_BYTES = 1 << 20
"""Handed to :meth:`BasicStore.put` at once of what lies in memory."""

_TRIES = 5
"""Of a read of an object that is replaced meanwhile."""


class BasicStore(ABC):
    """An :class:`~holdfast.storage.objects.base.ObjectStore` whose class has :meth:`put` to :meth:`delete` only.

    The rules of :class:`ObjectStore` for all methods hold for these: safe to repeat, bounded in time, callable from any
    thread. They raise ``UnavailableError`` when the store does not answer or refuses the credentials, and
    ``UnknownError`` when the bucket does not exist. A subclass overrides any other method that its protocol does
    better, :meth:`ensure_bucket` where buckets can be made, and the pair :meth:`unfinished` and :meth:`abort` where an
    upload that breaks off leaves parts behind.
    """

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket

    @abstractmethod
    def put(self, key: str, body: Body) -> None:
        """Store bytes, or a file from its position to its end: read once, of any length, which it need not know.

        The object appears whole or not at all: what the file raises while it is read ends the upload.
        """

    @abstractmethod
    def read(self, key: str, start: int, nbytes: int) -> bytes:
        """Return ``nbytes`` from byte ``start``, fewer only where the object ends.

        Raises:
            UnknownError: there is no such object.
        """

    @abstractmethod
    def find(self, key: str) -> ObjectInfo | None:
        """Return the size and time of an object; None: there is none."""

    @abstractmethod
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose keys start with ``prefix``, in order of keys, as of the call."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""

    def put_stream(self, key: str, body: BinaryIO) -> None:
        """Store a large object; the stream needs no length and is read once."""
        self.put(key, body)

    def put_view(self, key: str, view: memoryview, *, within_s: float) -> None:
        """Store bytes from memory; given up after ``within_s`` seconds, at the next piece that is sent."""
        deadline = Deadline(f"upload of {key!r} to {self.bucket}", within_s)
        self.put(key, io.BufferedReader(_Timed(view, deadline), SEND_BYTES))

    def get(self, key: str) -> bytes:
        """Return the whole object, in memory: of one version, also where it is replaced meanwhile.

        Raises:
            UnknownError: there is no such object.
            UnavailableError: it was replaced during every try.
        """
        before = self.head(key)
        for _ in range(_TRIES):
            short: UnknownError | None = None
            try:
                found = self.get_range(key, 0, before.nbytes)
            except UnknownError as error:
                short = error
            after = self.head(key)
            if after == before:
                if short is not None:
                    raise short
                return found
            before = after
        raise UnavailableError(
            f"object {key!r} in bucket {self.bucket!r} is replaced again and again: not read."
        )

    def get_range(self, key: str, start: int, nbytes: int) -> bytes:
        """Exactly ``nbytes`` from byte ``start``; a shorter object is an ``UnknownError``."""
        found: list[bytes] = []
        self.read_range(key, start, nbytes, CHUNK_BYTES, found.append)
        return b"".join(found)

    def read_range(
        self, key: str, start: int, nbytes: int, chunk_nbytes: int, take: Callable[[bytes], None]
    ) -> None:
        """Give ``take`` the bytes, ``chunk_nbytes`` at a time."""
        if not nbytes:
            return
        self._require(key, self.head(key).nbytes - start, start, nbytes)
        for at in range(start, start + nbytes, chunk_nbytes):
            wanted = min(chunk_nbytes, start + nbytes - at)
            chunk = self.read(key, at, wanted)
            self._require(key, at - start + len(chunk), start, at - start + wanted)
            take(chunk)

    def _require(self, key: str, there: int, start: int, nbytes: int) -> None:
        if there < nbytes:
            raise UnknownError(
                f"object {key!r} in bucket {self.bucket!r} has {max(0, there)} of the {nbytes} bytes asked for at "
                f"{start}: it is shorter than expected."
            )

    def fetch(self, key: str, path: Path) -> int:
        """Download to ``path``, which appears only when complete; returns its size in bytes."""
        nbytes = self.head(key).nbytes
        with landing(path, key, nbytes) as file:

            def take(chunk: bytes) -> None:
                file.write(chunk)

            self.read_range(key, 0, nbytes, CHUNK_BYTES, take)
        return nbytes

    def exists(self, key: str) -> bool:
        """Return whether there is such an object."""
        return self.find(key) is not None

    def head(self, key: str) -> ObjectInfo:
        """Size and time of an object."""
        found = self.find(key)
        if found is None:
            raise UnknownError(f"no object {key!r} in bucket {self.bucket!r}.")
        return found

    def folders(self, prefix: str) -> tuple[str, ...]:
        """Return the folders below ``prefix``, from a list of all that lies there."""
        rest = (found.key.removeprefix(prefix).partition("/") for found in self.list(prefix))
        return tuple(sorted({f"{prefix}{name}/" for name, slash, _ in rest if slash}))

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove objects one by one; those that are not there are no error."""
        for key in keys:
            self.delete(key)

    def unfinished(self, prefix: str) -> tuple[Unfinished, ...]:
        """Return nothing: an upload that breaks off leaves nothing behind."""
        return ()

    def abort(self, upload: Unfinished) -> None:
        """Return: there are no unfinished uploads."""
        return

    def ensure_bucket(self) -> None:
        """Return: the store's operators make it."""
        return


class _Timed(io.RawIOBase):
    """Bytes in memory as a file whose reads raise ``UnavailableError`` once time is up."""

    def __init__(self, view: memoryview, deadline: Deadline) -> None:
        self._view, self._deadline, self._at = view, deadline, 0

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Fill ``buffer`` with the next bytes; returns how many."""
        self._deadline.check()
        room = memoryview(buffer).cast("B")
        piece = self._view[self._at : self._at + len(room)]
        room[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
