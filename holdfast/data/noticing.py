"""New files noticed by all ranks together: one lists, each indexes its share of the files, all know the same."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from holdfast.data.agree import Agreement
from holdfast.data.at_once import each_of
from holdfast.data.files import File, Indexed
from holdfast.data.formats import TABLES, Format, clashes, format_of, lacks
from holdfast.data.listing import Listing
from holdfast.data.patience import PlacePatience
from holdfast.data.sources import Mix, Source
from holdfast.errors import EmptyPlaceError, SourceError


def noticed(mix: Mix, listing: Listing, agree: Agreement, threads: int, patience: PlacePatience) -> Listing:
    """Return the listing with what is new by now; the same one, where nothing is.

    After the first time only sources that are followed are listed.

    Raises:
        SourceError: a place or a file is missing, was changed, or cannot be read.
        SettingsError: a file is of no known format.
    """

    def news() -> Mapping[str, Sequence[File]]:
        asked = {name: each for name, each in mix.sources.items() if each.follow or not listing.groups}
        if not listing.groups:  # a wrong address shows at once, as all else that is wrong then
            return listing.news(mix, {name: each.listing() for name, each in asked.items()})
        return listing.news(
            mix, {name: patience.ask(functools.partial(_listed_later, each)) for name, each in asked.items()}
        )

    fresh = agree.one(news)
    if not any(fresh.values()):
        return listing
    flat = [
        (name, file) for name, files in fresh.items() for file in sorted(files, key=lambda each: each.path)
    ]
    first = _first(mix, listing, flat)
    parts = agree.each(lambda: _indexed(mix, flat[agree.rank :: agree.ranks], first, threads, patience))
    more: dict[str, list[Indexed]] = {name: [] for name in fresh}
    for number, (name, _) in enumerate(flat):
        more[name].append(parts[number % agree.ranks][number // agree.ranks])
    return listing.grown({name: tuple(files) for name, files in more.items()})


def _listed_later(source: Source) -> list[File]:
    """List a source that is followed; where all its objects were taken away, nothing is new, as in an empty folder."""
    try:
        return source.listing()
    except EmptyPlaceError:
        return []


def _first(mix: Mix, listing: Listing, fresh: Sequence[tuple[str, File]]) -> dict[str, list[File]]:
    """Return the files of each source by whose columns the new ones are judged: the first one of all that is there.

    That is the first of those that were noticed first, or, where it is gone by now, of those that are new.
    """
    listed = [
        (name, each.file) for group in listing.groups for name, files in group.items() for each in files
    ]
    found: dict[str, list[File]] = {name: [] for name in mix.sources}
    for files in (listed, fresh):
        seen = set()
        for name, file in files:
            if name not in seen and _kind(mix, name, file) in TABLES:
                found[name].append(file)
                seen.add(name)
    return found


def _kind(mix: Mix, name: str, file: File) -> str:
    source = mix.sources[name]
    return format_of(_path(mix, name, file), source.format)


def _path(mix: Mix, name: str, file: File) -> str:
    return f"{mix.sources[name].place.name.rstrip('/')}/{file.path}"


@dataclass(frozen=True)
class _Columns:
    """The columns by which the tables of a source are judged: those of its first one."""

    path: str = ""
    names: frozenset[str] = frozenset()
    schema: Any = None
    """None: types are not compared."""

    def wrong(self, opened: BinaryIO, path: str, kind: Format) -> str:
        """Return the message for a table that does not fit; empty: it does."""
        missing = lacks(path, kind.columns(opened, path), self.path, self.names)
        if missing or self.schema is None:
            return missing
        return clashes(path, kind.schema(opened, path), self.path, self.schema)


def _wanted(mix: Mix, name: str, files: Sequence[File], formats: Mapping[str, Format]) -> _Columns:
    """Return the columns of the first of these files that is there."""
    source = mix.sources[name]
    for number, file in enumerate(files, 1):
        path, kind = _path(mix, name, file), formats[_kind(mix, name, file)]
        try:
            with source.place.open(file) as opened:
                # What `decode` is given differs as it may: it is there to make it alike.
                schema = kind.schema(opened, path) if source.decode is None else None
                return _Columns(path, kind.columns(opened, path), schema)
        except SourceError:
            if number == len(files):
                raise
    return _Columns()


def _indexed(
    mix: Mix,
    files: Sequence[tuple[str, File]],
    first: Mapping[str, Sequence[File]],
    threads: int,
    patience: PlacePatience,
) -> list[Indexed]:
    formats = {name: each.formats() for name, each in mix.sources.items()}
    asked = {name for name, _ in files}
    wanted = {
        name: patience.ask(functools.partial(_wanted, mix, name, first[name], formats[name]))
        for name in asked
    }

    def index(given: tuple[str, File]) -> Indexed:
        name, file = given
        source = mix.sources[name]
        path, kind = _path(mix, name, file), _kind(mix, name, file)
        with source.place.open(file) as opened:
            splits = formats[name][kind].index(opened, path)
            wrong = wanted[name].wrong(opened, path, formats[name][kind]) if kind in TABLES else ""
        if wrong:
            raise SourceError(wrong)
        return Indexed(file, tuple(splits))

    return list(each_of(lambda given: patience.ask(functools.partial(index, given)), files, threads))
