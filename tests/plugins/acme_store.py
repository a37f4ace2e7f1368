"""A store as another package would bring it: folders on a shared file system, behind ``acme:///folder`` URLs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.errors import SettingsError, UnknownError
from holdfast.settings import Settings
from holdfast.storage.objects.base import Body, ObjectInfo
from holdfast.storage.objects.basic import BasicStore


class FolderStore(BasicStore):
    """A bucket is a folder, an object a file whose name is its key."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self._folder = folder

    @staticmethod
    def arguments(settings: Settings, url: str) -> dict[str, str]:
        """The folder of the URL."""
        folder = urlsplit(url).path
        if not folder:
            raise SettingsError(f"{url}: expected acme:///FOLDER")
        return {"folder": folder}

    @staticmethod
    def connect(arguments: Mapping[str, str]) -> FolderStore:
        """The store in that folder."""
        return FolderStore(Path(arguments["folder"]))

    def put(self, key: str, body: Body) -> None:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".coming-", delete=False) as file:
            try:
                if isinstance(body, bytes | bytearray | memoryview):
                    file.write(body)
                else:
                    while piece := body.read(1 << 20):
                        file.write(piece)
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise

    def read(self, key: str, start: int, nbytes: int) -> bytes:
        try:
            with self._path(key).open("rb") as file:
                file.seek(start)
                return file.read(nbytes)
        except FileNotFoundError:
            raise UnknownError(f"no object {key!r} in bucket {self.bucket!r}.") from None

    def find(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        return self._info(path) if path.is_file() else None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._path("")
        files = (path for path in self._folder.rglob("*") if path.is_file() and path.name[:8] != ".coming-")
        found = sorted((self._info(path) for path in files), key=lambda info: info.key)
        return iter([info for info in found if info.key.startswith(prefix)])

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def ensure_bucket(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def _path(self, key: str) -> Path:
        if not self._folder.is_dir():
            raise UnknownError(f"no bucket {self.bucket!r}: make the folder")
        return self._folder / key

    def _info(self, path: Path) -> ObjectInfo:
        there = path.stat()
        return ObjectInfo(
            key=path.relative_to(self._folder).as_posix(), nbytes=there.st_size, modified_at=there.st_mtime
        )
