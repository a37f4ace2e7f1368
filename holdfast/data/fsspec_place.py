"""A place of any kind that fsspec knows: Google Cloud Storage, HDFS, Azure, ..."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, BinaryIO, cast

from holdfast.data.files import File, counts
from holdfast.data.places import changed
from holdfast.errors import SettingsError, SourceError, UnavailableError

_VERSIONS = (
    "ETag",
    "etag",
    "md5Hash",
    "content_md5",
    "mtime",
    "LastModified",
    "last_modified",
    "modified",
    "created",
)


@dataclass(frozen=True)
class FsspecPlace:
    """All files below an address, but those with a part of their path that begins with ``.`` or ``_``."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Of the file system (``storage_options``)."""

    def files(self) -> Iterator[File]:
        """List it."""
        system, root = self._system()
        try:
            system.invalidate_cache()  # some keep a listing as long as the process lives: nothing new would ever come
            found = system.find(root, detail=True)
        except FileNotFoundError:
            found = {}
        except OSError as error:
            raise UnavailableError(f"{self.name}: {error}") from None
        if not found:
            raise SourceError(f"{self.name}: there is nothing")
        for path, info in found.items():
            below = path.removeprefix(root.rstrip("/")).removeprefix("/")
            if below and counts(below):
                yield File(below, int(info["size"]), _version(info))

    def open(self, file: File) -> BinaryIO:
        """Open it, and compare."""
        system, root = self._system()
        path = f"{root.rstrip('/')}/{file.path}"
        try:
            system.invalidate_cache()
            info = system.info(path)
            if (info["size"], _version(info)) != (file.nbytes, file.version):
                reason = f"it has {info['size']} bytes and version {_version(info)}"
                raise SourceError(changed(self.name, file, reason))
            return cast(BinaryIO, system.open(path, "rb"))
        except FileNotFoundError:
            raise SourceError(changed(self.name, file, "it is gone")) from None
        except OSError as error:
            raise UnavailableError(f"{self.name}: {error}") from None

    def _system(self) -> tuple[Any, str]:
        try:
            import fsspec  # noqa: PLC0415  (an extra)
        except ImportError:
            raise SettingsError(f"{self.name}: needs fsspec: pip install 'holdfast[data]'") from None
        try:
            system, root = fsspec.core.url_to_fs(self.name, **self.options)
        except (ValueError, ImportError) as error:
            raise SettingsError(f"{self.name}: {error}") from None
        return system, root


def _version(info: Mapping[str, Any]) -> str:
    value = next((info[each] for each in _VERSIONS if info.get(each) is not None), "")
    # Some systems list times as numbers and give that of a single file as a date.
    return str(value.timestamp() if isinstance(value, datetime) else value)
