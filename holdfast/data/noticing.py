"""New files noticed by all ranks together: one lists, each indexes its share of the files, all know the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.data.agree import Agreement
from holdfast.data.at_once import each_of
from holdfast.data.files import File, Indexed
from holdfast.data.formats import format_of
from holdfast.data.listing import Listing
from holdfast.data.sources import Mix


def noticed(mix: Mix, listing: Listing, agree: Agreement, threads: int) -> Listing:
    """Return the listing with what is new by now; the same one, where nothing is.

    After the first time only sources that are followed are listed.

    Raises:
        SourceError: a place or a file is missing, was changed, or cannot be read.
        SettingsError: a file is of no known format.
    """

    def news() -> Mapping[str, Sequence[File]]:
        asked = {name: each for name, each in mix.sources.items() if each.follow or not listing.groups}
        return listing.news(mix, {name: each.listing() for name, each in asked.items()})

    fresh = agree.one(news)
    if not any(fresh.values()):
        return listing
    flat = [
        (name, file) for name, files in fresh.items() for file in sorted(files, key=lambda each: each.path)
    ]
    parts = agree.each(lambda: _indexed(mix, flat[agree.rank :: agree.ranks], threads))
    more: dict[str, list[Indexed]] = {name: [] for name in fresh}
    for number, (name, _) in enumerate(flat):
        more[name].append(parts[number % agree.ranks][number // agree.ranks])
    return listing.grown({name: tuple(files) for name, files in more.items()})


def _indexed(mix: Mix, files: Sequence[tuple[str, File]], threads: int) -> list[Indexed]:
    formats = {name: each.formats() for name, each in mix.sources.items()}

    def index(given: tuple[str, File]) -> Indexed:
        name, file = given
        source = mix.sources[name]
        path = f"{source.place.name.rstrip('/')}/{file.path}"
        with source.place.open(file) as opened:
            splits = formats[name][format_of(path, source.format)].index(opened, path)
        return Indexed(file, tuple(splits))

    return list(each_of(index, files, threads))
