"""The operations that Holdfast needs of an object store: few enough that every S3 implementation has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from holdfast.models.base import Frozen

if TYPE_CHECKING:
    from holdfast.settings import Settings

Body = bytes | bytearray | memoryview | BinaryIO
"""Bytes, or a file that is read from its position to its end."""


class ObjectInfo(Frozen):
    """An object without its bytes."""

    key: str
    nbytes: int
    modified_at: float
    """Unix seconds, on the store's clock."""


class Unfinished(Frozen):
    """A multipart upload that was begun, and neither completed nor aborted."""

    key: str
    upload_id: str
    active_at: float
    """When it was begun or its newest part came: Unix seconds, on the store's clock."""


class ObjectStore(Protocol):
    """One bucket. Objects appear whole or not at all; writing a key again replaces it.

    Nothing here depends on conditional writes: some stores accept and ignore them. Every method may be
    repeated, is bounded in time, and may be called from any thread. All raise
    :class:`~holdfast.errors.UnavailableError` when the store does not answer or refuses the credentials, and
    :class:`~holdfast.errors.UnknownError` when the bucket (or the object that is asked for) does not exist.
    """

    @property
    def bucket(self) -> str:
        """Its name."""
        ...

    def put(self, key: str, body: Body) -> None:
        """Store a small object (at most 5 GiB; meant for some MiB) in one request."""
        ...

    def put_stream(self, key: str, body: BinaryIO) -> None:
        """Store a large object in parts sent in parallel; the stream needs no length and is read once."""
        ...

    def put_view(self, key: str, view: memoryview, *, within_s: float) -> None:
        """Store bytes of any length straight from memory; large ones in parts sent in parallel.

        They are sent where they lie, without a copy of the whole or of a part. Given up, and aborted, after
        ``within_s`` seconds (plus one request's own bound).
        """
        ...

    def get(self, key: str) -> bytes:
        """Return the whole object, in memory."""
        ...

    def get_range(self, key: str, start: int, nbytes: int) -> bytes:
        """Exactly ``nbytes`` from byte ``start``; a shorter object is an ``UnknownError``."""
        ...

    def read_range(
        self, key: str, start: int, nbytes: int, chunk_nbytes: int, take: Callable[[bytes], None]
    ) -> None:
        """Read as :meth:`get_range` does, without all of it in memory at once.

        ``take`` is called with the bytes in order, ``chunk_nbytes`` at a time; only the last may be fewer. What it
        raises ends the read.
        """
        ...

    def fetch(self, key: str, path: Path) -> int:
        """Download to ``path``, which appears only when complete; returns its size in bytes."""
        ...

    def exists(self, key: str) -> bool:
        """Return whether there is such an object."""
        ...

    def head(self, key: str) -> ObjectInfo:
        """Size and time of an object."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose keys start with ``prefix``, in order of keys, as of the call."""
        ...

    def folders(self, prefix: str) -> tuple[str, ...]:
        """Return the folders below ``prefix``, each once and in order, as whole prefixes up to the next slash.

        Costs a request per thousand folders, however many objects are in them.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""
        ...

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove objects, a thousand per request; those that are not there are no error."""
        ...

    def unfinished(self, prefix: str) -> tuple[Unfinished, ...]:
        """Multipart uploads under ``prefix`` that are under way or were left behind."""
        ...

    def abort(self, upload: Unfinished) -> None:
        """Drop an unfinished upload with its parts; one that is not there is no error."""
        ...

    def ensure_bucket(self) -> None:
        """Make the bucket if it does not exist."""
        ...


class StoreKind(Protocol):
    """A kind of store: what an entry point of the group ``holdfast.stores`` names, called as its URLs' scheme."""

    def arguments(self, settings: Settings, url: str) -> dict[str, str]:
        """Return how the store at ``url`` is reached; called in agents, so it imports no heavy client.

        The agent gives it to ranks, which know no settings. It may hold secrets.

        Raises:
            SettingsError: the URL or a setting is wrong.
        """
        ...

    def connect(self, arguments: Mapping[str, str]) -> ObjectStore:
        """Return the store that :meth:`arguments` described, in any process; connects on first use."""
        ...
