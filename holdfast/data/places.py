"""Where files lie: the seam for other kinds of storage."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import BinaryIO, Protocol, cast, runtime_checkable

from holdfast.data.files import File
from holdfast.errors import SettingsError

GROUP = "holdfast.places"
"""Entry points of other packages: ``(address) -> Place``, by the scheme of the address."""


@runtime_checkable
class Place(Protocol):
    """A folder, a prefix, a listing. Any thread may call it; it must be picklable where worker processes read."""

    @property
    def name(self) -> str:
        """Its address, for messages: ``/data/web``, ``s3://bucket/code/``."""
        ...

    def files(self) -> Iterable[File]:
        """Return what is there now, in any order.

        Raises:
            SourceError: there is no such place.
            UnavailableError: it does not answer.
        """
        ...

    def open(self, file: File) -> BinaryIO:
        """Return the file as it was listed, seekable.

        Raises:
            SourceError: it is gone, or its size or version is another one.
            UnavailableError: the place does not answer.
        """
        ...


def plugged(address: str) -> Place:
    """Return the place that an installed package has for the scheme of ``address``.

    Raises:
        SettingsError: no package has one.
    """
    scheme = address.partition("://")[0]
    found = {each.name: each for each in entry_points(group=GROUP)}
    if scheme not in found:
        known = ", ".join(found) or "none is installed"
        raise SettingsError(
            f"{address}: no package has a place for {scheme}:// (entry points {GROUP}: {known})"
        )
    return cast(Place, found[scheme].load()(address))


def changed(place: str, file: File, now: str) -> str:
    """Return the message for a file that is not the listed one any more."""
    return (
        f"{place.rstrip('/')}/{file.path} is not the file that was listed: {now}, listed with {file.nbytes} bytes and "
        f"version {file.version}. Put the old one back, or leave it out and begin without this data position"
    )
