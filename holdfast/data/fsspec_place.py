"""A place of any kind that fsspec knows: Google Cloud Storage, HDFS, Azure, ..."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, BinaryIO, cast

from holdfast.data.files import File, counts
from holdfast.data.places import changed
from holdfast.data.ranges import opened
from holdfast.errors import EmptyPlaceError, HoldfastError, SettingsError, SourceError, UnavailableError

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
        """List it; a folder that cannot be listed is no empty one."""
        system, root = self._system()
        with self._understood():
            system.invalidate_cache()  # some keep a listing as long as the process lives: nothing new would ever come
            found = _found(system, root)
        if not found:
            raise EmptyPlaceError(f"{self.name}: there is nothing")
        for path, info in found.items():
            below = path.removeprefix(root.rstrip("/")).removeprefix("/")
            if below and counts(below):
                yield File(below, int(info["size"]), _version(info))

    def open(self, file: File) -> BinaryIO:
        """Open it, and compare; most systems ask for nothing before it is read."""
        system, root = self._system()
        path = f"{root.rstrip('/')}/{file.path}"
        with self._understood(file):
            system.invalidate_cache()
            info = system.info(path)
            if (info["size"], _version(info)) != (file.nbytes, file.version):
                reason = f"it has {info['size']} bytes and version {_version(info)}"
                raise SourceError(changed(self.name, file, reason))
            content = system.open(path, "rb")

        def bring(start: int, stop: int) -> bytes:
            with self._understood(file):
                assert system is not None  # an archive is closed with the last reference to its system
                content.seek(start)
                came = bytes(content.read(stop - start))
            if len(came) != stop - start:
                raise UnavailableError(
                    f"{self.name}: {len(came)} bytes of {file.path} came of {stop - start}"
                )
            return came

        return opened(file.nbytes, bring, content.close)

    @contextmanager
    def _understood(self, file: File | None = None) -> Iterator[None]:
        """Translate the errors of a file system, of which some bring their own: all but damage may pass."""
        try:
            yield
        except FileNotFoundError as error:
            reason = changed(self.name, file, "it is gone") if file else f"{self.name}: there is nothing"
            raise SourceError(reason) from error
        except PermissionError as error:
            raise SourceError(f"{self.name}: it may not be read: {error}") from error
        except HoldfastError:
            raise
        except Exception as error:
            if not isinstance(error, OSError) and _is_of_python(error):
                raise
            raise UnavailableError(f"{self.name}: {type(error).__name__}: {error}") from None

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


def _found(system: Any, root: str) -> Mapping[str, Any]:
    """Return all files below ``root``.

    fsspec's own walk leaves out a folder that does not answer, without a word; only systems with a listing of their
    own are asked for it.
    """
    from fsspec.asyn import AsyncFileSystem  # noqa: PLC0415  (an extra)
    from fsspec.spec import AbstractFileSystem  # noqa: PLC0415  (an extra)

    method = getattr(system.find, "__wrapped__", system.find)
    if getattr(method, "__func__", None) in (AbstractFileSystem.find, AsyncFileSystem._find):
        return dict(_walked(system, root))
    return cast("Mapping[str, Any]", system.find(root, detail=True))


def _walked(system: Any, root: str) -> Iterator[tuple[str, Any]]:
    folders = [root]
    while folders:
        folder = folders.pop()
        try:
            listed = system.ls(folder, detail=True)
        except FileNotFoundError:
            if folder == root:
                raise
            continue  # taken away since
        for info in listed:
            path = info["name"].rstrip("/")
            if path == folder.rstrip("/"):
                continue
            if info["type"] == "directory":
                folders.append(path)
            else:
                yield path, info


def _is_of_python(error: Exception) -> bool:
    """Return whether an exception is no client library's: damaged bytes, or a mistake in code."""
    return type(error).__module__.partition(".")[0] in sys.stdlib_module_names


def _version(info: Mapping[str, Any]) -> str:
    value = next((info[each] for each in _VERSIONS if info.get(each) is not None), "")
    # Some systems list times as numbers and give that of a single file as a date.
    return str(value.timestamp() if isinstance(value, datetime) else value)
