"""Sources of a run's data, and mixes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.data.files import File, Split
from holdfast.data.folder import FolderPlace
from holdfast.data.formats import FORMATS, Arrow, Format, Parquet, format_of, split_name
from holdfast.data.fsspec_place import FsspecPlace
from holdfast.data.http_listing import HttpPlace
from holdfast.data.mixing import ROW, quotas
from holdfast.data.partitions import By, closed, placed
from holdfast.data.places import Place, plugged
from holdfast.data.rows import Rows
from holdfast.data.s3_prefix import S3Place
from holdfast.errors import SettingsError


@dataclass(frozen=True)
class Source:
    """Files of one place, in one format."""

    place: Place
    format: str = ""
    """Empty: by the ends of the files' names."""
    where: Callable[[File], bool] | None = None
    """Files that count; all without it. See :func:`~holdfast.data.between`."""
    by: By = "hour"
    """The partitions that paths name: hours, or whole days."""
    window: int = 1
    """Partitions whose files are shuffled together."""
    shuffle: int = 10_000
    """Samples of a reader that are shuffled together; 0: all in the order of paths and rows."""
    columns: tuple[str, ...] | None = None
    """Columns of Parquet files to be read; None: all."""
    optional: tuple[str, ...] = ()
    """Columns of Parquet and Arrow files that a file may lack: nulls there."""
    decode: Callable[[Rows], Rows] | None = None
    """Turns the rows of a split into as many others, where they are read."""
    repeat: bool = False
    """Begin again, in another order, whenever it is used up; a mix ends with its sources that do not."""
    follow: bool = False
    """New files are looked for when all that are known are used up; the run has no end then."""
    only_closed: bool = False
    """A partition counts once there is a later one: for writers that add to the newest."""
    aligned: bool = False
    """Set by :func:`align`."""

    def __post_init__(self) -> None:
        if self.format:
            format_of("", self.format)
        if isinstance(self.optional, str):
            raise SettingsError(
                f"{self.place.name}: optional = {self.optional!r}: expected a list of columns"
            )
        for name, value, least in (("window", self.window, 1), ("shuffle", self.shuffle, 0)):
            if value < least:
                raise SettingsError(f"{self.place.name}: {name} = {value}: expected {least} or more")
        if self.by not in ("hour", "day"):
            raise SettingsError(f"{self.place.name}: by = {self.by!r}: expected 'hour' or 'day'")
        if self.repeat and self.follow:
            raise SettingsError(f"{self.place.name}: repeat and follow: a source that is followed has no end")

    def listing(self) -> list[File]:
        """Return the files that count now.

        Raises:
            SourceError: the place is not there.
            SettingsError: a file is of no known format.
        """
        files = placed(self.place.files())
        files = closed(files, self.by) if self.only_closed else files
        found = [each for each in files if self.where is None or self.where(each)]
        for each in found:
            format_of(f"{self.place.name.rstrip('/')}/{each.path}", self.format)
        return found

    def decoded(self, rows: Rows, path: str, split: Split) -> Rows:
        """Return the rows as ``decode`` makes them; its own errors are raised with a note of the file and the split.

        Raises:
            SettingsError: they are not as many.
        """
        if self.decode is None:
            return rows
        try:
            made = self.decode(rows)
        except Exception as error:  # of any kind: what it is decides on how the job is recovered
            kind = format_of(path, self.format)
            error.add_note(f"raised by decode= for {path}, {split_name(kind, split)}")
            raise
        if len(made) != len(rows):
            raise SettingsError(
                f"decode: {len(made)} rows of {len(rows)} of {path}: expected as many as it was given"
            )
        return made

    def formats(self) -> dict[str, Format]:
        """Make this source's formats, by name."""
        made: dict[str, Format] = {name: kind() for name, kind in FORMATS.items()}
        made["parquet"] = Parquet(None if self.columns is None else list(self.columns), self.optional)
        made["arrow"] = made["feather"] = Arrow(self.optional)
        return made


@dataclass(frozen=True)
class Mix:
    """Several sources, each taken as often as its weight gives."""

    sources: Mapping[str, Source]
    quotas: Mapping[str, int] = field(default_factory=dict)


def folder(path: Any, **options: Any) -> Source:
    """Return a local folder as a source; ``options`` are the fields of :class:`Source`."""
    return Source(FolderPlace(str(path)), **options)


def s3(address: str, *, endpoint: str | None = None, **options: Any) -> Source:
    """Return a prefix of an S3 bucket as a source; credentials are those that boto3 finds.

    Args:
        address: ``s3://bucket/prefix/``.
        endpoint: of another store than Amazon's; None: ``AWS_ENDPOINT_URL``.
        options: fields of :class:`Source`.
    """
    return Source(S3Place(address, endpoint), **options)


def http(address: str, *, headers: Mapping[str, str] | None = None, **options: Any) -> Source:
    """Return the files of a listing over HTTP as a source.

    Args:
        address: of the listing; files are below it.
        headers: of every request, such as ``Authorization``.
        options: fields of :class:`Source`.
    """
    return Source(HttpPlace(address, tuple((headers or {}).items())), **options)


def fsspec(address: str, *, storage_options: Mapping[str, Any] | None = None, **options: Any) -> Source:
    """Return what fsspec finds at an address (``gs://bucket/x``) as a source; ``options`` as of :func:`folder`."""
    return Source(FsspecPlace(address, storage_options or {}), **options)


def source(place: Place | str, **options: Any) -> Source:
    """Return a source of another kind of place: an object, or an address of a scheme that a package brings."""
    return Source(plugged(place) if isinstance(place, str) else place, **options)


def mix(sources: Mapping[str, Source], weights: Mapping[str, float] | None = None) -> Mix:
    """Mix sources by weight; without weights all alike.

    Each sample comes once in an epoch: a source that is used up drops out, unless it is to ``repeat`` or ``follow``.

    Raises:
        SettingsError: no source; a weight is not positive, or one is missing or too many.
    """
    if not sources:
        raise SettingsError("mix({}): expected at least one source")
    weights = dict.fromkeys(sources, 1.0) if weights is None else weights
    if wrong := sorted(set(sources) ^ set(weights)):
        raise SettingsError(f"weights: {', '.join(wrong)}: expected one for each of {', '.join(sources)}")
    if len(sources) > ROW:
        raise SettingsError(f"mix: {len(sources)} sources, expected at most {ROW}")
    shares = quotas([weights[name] for name in sources], list(sources))
    return Mix(dict(sources), dict(zip(sources, shares, strict=True)))


def align(sources: Mapping[str, Source]) -> dict[str, Source]:
    """Return the sources so that a partition counts only when all of them have it; to be mixed.

    Raises:
        SettingsError: some are followed and others are not.
    """
    if len({each.follow for each in sources.values()}) > 1:
        alone = ", ".join(name for name, each in sources.items() if not each.follow)
        raise SettingsError(
            f"align: {alone}: follow = False beside sources with follow=True: expected the same of all"
        )
    return {name: replace(each, aligned=True) for name, each in sources.items()}


def as_mix(given: Source | Mix) -> Mix:
    """Return a single source as a mix of one."""
    return given if isinstance(given, Mix) else Mix({"": given}, {"": 1})
