"""The listing of a run: the files that its order is made of. Files are only ever added. Pure.

It is a part of the checkpoint: after a restore the order is that of the listing, whatever lies in the folders by then.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.data.files import File, Indexed, Split
from holdfast.data.partitions import aligned, windows
from holdfast.data.places import changed
from holdfast.data.sources import Mix
from holdfast.errors import SourceError

Listed = Mapping[str, Sequence[Indexed]]
"""Files by source."""


@dataclass(frozen=True)
class Catalog:
    """The splits of a source in the order of its windows."""

    windows: tuple[tuple[int, ...], ...] = ()
    """Rows of each split."""
    splits: tuple[tuple[File, Split], ...] = ()


@dataclass(frozen=True)
class Listing:
    """All files so far, in the groups in which they were noticed."""

    groups: tuple[Listed, ...] = ()
    _files: dict[str, dict[str, File]] = field(default_factory=dict, compare=False, repr=False)
    _groups: dict[tuple[str, str], int] = field(default_factory=dict, compare=False, repr=False)

    def known(self, source: str) -> dict[str, File]:
        """Return the files of a source by path."""
        if source not in self._files:
            listed = (each.file for group in self.groups for each in group.get(source, ()))
            self._files[source] = {file.path: file for file in listed}
        return self._files[source]

    def group_of(self, source: str, path: str) -> int:
        """Return the number of the group in which a file was noticed."""
        if not self._groups:
            for number, group in enumerate(self.groups):
                for name, files in group.items():
                    self._groups.update(((name, each.file.path), number) for each in files)
        return self._groups[source, path]

    def news(self, mix: Mix, found: Mapping[str, Sequence[File]]) -> dict[str, list[File]]:
        """Return the files that are new in ``found`` and count.

        Raises:
            SourceError: a known file has another size or version now.
        """
        fresh: dict[str, list[File]] = {}
        for name, files in found.items():
            known = self.known(name)
            for each in files:
                old = known.get(each.path)
                if old is not None and (old.nbytes, old.version) != (each.nbytes, each.version):
                    now = f"it has {each.nbytes} bytes and version {each.version}"
                    raise SourceError(changed(mix.sources[name].place.name, old, now))
            fresh[name] = [each for each in files if each.path not in known]
        together = [name for name, each in mix.sources.items() if each.aligned]
        fresh |= aligned(
            {name: fresh[name] for name in together},
            {name: list(self.known(name).values()) for name in together},
            # Whole days where one of them counts in days: then no single hour is what all of them have.
            "day" if any(mix.sources[name].by == "day" for name in together) else "hour",
        )
        return fresh

    def grown(self, more: Listed) -> Listing:
        """Return the listing with another group."""
        return Listing((*self.groups, more)) if any(more.values()) else self

    def catalogs(self, mix: Mix) -> dict[str, Catalog]:
        """Return the splits of each source in windows. New files never join windows that were there before."""
        found = {}
        for name, source in mix.sources.items():
            rows: list[tuple[int, ...]] = []
            splits: list[tuple[File, Split]] = []
            for group in self.groups:
                indexed = group.get(name, ())
                for window in windows([each.file for each in indexed], source.by, source.window):
                    here = [(indexed[at].file, split) for at in window for split in indexed[at].splits]
                    here = [each for each in here if each[1].rows]
                    rows.append(tuple(split.rows for _, split in here))
                    splits += here
            found[name] = Catalog(tuple(rows), tuple(splits))
        return found

    def packed(self) -> bytes:
        """Return it as bytes, the same for the same listing."""
        groups = [
            {
                name: [
                    [f.path, f.nbytes, f.version, f.partition and f.partition.isoformat(), each.splits]
                    for each in files
                    for f in (each.file,)
                ]
                for name, files in group.items()
            }
            for group in self.groups
        ]
        return zlib.compress(json.dumps(groups).encode(), 6)

    @staticmethod
    def unpacked(content: bytes) -> Listing:
        """Return the listing of :meth:`packed`."""
        groups = []
        for group in json.loads(zlib.decompress(content)):
            groups.append({name: tuple(map(_indexed, files)) for name, files in group.items()})
        return Listing(tuple(groups))


def _indexed(entry: tuple[str, int, str, str | None, list[list[int]]]) -> Indexed:
    path, nbytes, version, partition, splits = entry
    when = datetime.fromisoformat(partition) if partition else None
    return Indexed(File(path, nbytes, version, when), tuple(Split(*each) for each in splits))
