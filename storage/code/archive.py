"""A directory as an archive: the same content gives the same bytes and the same name, anywhere, any time."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import posixpath
import stat
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, cast

from holdfast.errors import SettingsError, UnknownError
from holdfast.storage.code.code_files import list_files

MAX_BYTES = 256 << 20
VERSION_DIGITS = 12
_OVERHEAD_BYTES = 64 << 20
"""Of headers, beside the files' content."""


class Archive(NamedTuple):
    """A packed directory."""

    version: str
    """First 12 hexadecimal digits of the SHA-256 over names, kinds and contents."""
    content: bytes
    """The ``tar.gz``."""


class _Entry(NamedTuple):
    """One file or link; ``content`` is the target of a link."""

    name: str
    kind: str
    """``x`` executable, ``f`` other file, ``l`` symbolic link."""
    content: bytes


def pack(path: Path) -> Archive:
    """Return the directory's files: those that git would not ignore, or all besides caches and environments.

    Raises:
        SettingsError: no such directory, no files in it, more than 256 MiB, or a link that leads out of it.
    """
    root = path.resolve()
    if not root.is_dir():
        raise SettingsError(
            f"code directory {path} does not exist or is no directory: check `code` in the job file."
        )
    names = list_files(root)
    _check_size(root, names)
    try:
        entries = sorted(entry for name in names if (entry := _read(root, name)))
    except OSError as error:
        raise SettingsError(f"code directory {path}: {error.filename}: {error.strerror}.") from error
    if not entries:
        raise SettingsError(
            f"code directory {path} has no files: check `code` in the job file and .gitignore."
        )
    return Archive(_version(entries), _compress(entries))


def unpack(archive: bytes, version: str, folder: Path) -> None:
    """Write the files of ``version`` into the empty ``folder``.

    Nothing is written unless all is as stored.

    Raises:
        UnknownError: it is no such archive, has other content, or holds what :func:`pack` never packs.
    """
    entries = _entries(archive, version)
    for entry in entries:
        _write(folder / entry.name, entry)
    root = os.path.realpath(folder)
    for entry in entries:
        # Each by itself stays inside; through one another links may still leave.
        if entry.kind == "l" and not _is_inside(root, os.path.realpath(folder / entry.name)):
            raise _damaged(version, f"link {entry.name} leads outside")


class ListedFile(NamedTuple):
    """One file or link of an archive, without its content."""

    name: str
    kind: str
    digest: str
    """SHA-256 of the content (of a link: its target)."""
    size: int
    """Bytes of it."""


def listing(archive: bytes, version: str) -> list[ListedFile]:
    """List the content of the archive of ``version``.

    Raises:
        UnknownError: it is no such archive.
    """
    return [
        ListedFile(entry.name, entry.kind, _digest(entry.content), len(entry.content))
        for entry in _entries(archive, version)
    ]


def content(archive: bytes, version: str, name: str) -> bytes | None:
    """Return the content of one file of the archive of ``version``; None: it holds no such file.

    Raises:
        UnknownError: it is no such archive.
    """
    return next((e.content for e in _entries(archive, version) if e.name == name and e.kind != "l"), None)


def difference(folder: Path, expected: Iterable[ListedFile]) -> str:
    """Describe what of ``expected`` is not in ``folder`` as packed; empty: all of it is. Other files do not matter."""
    for each in expected:
        path = folder / each.name
        try:
            found = path.lstat()
            # What a script made of it may have no end, or block who opens it.
            if _kind(found.st_mode) != each.kind:
                return f"{each.name} is of another kind"
            if each.kind != "l" and found.st_size != each.size:
                return f"{each.name} has other content ({found.st_size} bytes)"
            content = os.fsencode(os.readlink(path)) if each.kind == "l" else path.read_bytes()
        except OSError as error:
            return f"{each.name}: {error.strerror}"
        if _digest(content) != each.digest:
            return f"{each.name} has other content ({len(content)} bytes)"
    return ""


def _kind(mode: int) -> str:
    """Return the kind of an entry; empty: neither file nor link."""
    if stat.S_ISLNK(mode):
        return "l"
    if not stat.S_ISREG(mode):
        return ""
    return "x" if mode & stat.S_IXUSR else "f"


def _entries(archive: bytes, version: str) -> list[_Entry]:
    # Not `tarfile.extractall(filter="data")`: Python before 3.11.4 (Debian 12) does not have it.
    try:
        stream = _Bounded(archive)
        # As a stream: what a header claims to be long is not read beyond the bound, nor sought.
        with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|") as tar:
            entries = sorted(_members(tar))
        stream.finish()
    except (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, OverflowError) as error:
        raise _damaged(version, str(error)) from error
    if (found := _version(entries)) != version:
        raise _damaged(version, f"its content is {found}")
    _require_plain_names(entries, version)
    return entries


def _require_plain_names(entries: list[_Entry], version: str) -> None:
    links = {entry.name for entry in entries if entry.kind == "l"}
    if len({entry.name for entry in entries}) < len(entries):
        raise _damaged(version, "a name is in it twice")
    for entry in entries:
        above = {str(parent) for parent in PurePosixPath(entry.name).parents}
        plain = entry.name not in ("", ".") and str(PurePosixPath(entry.name)) == entry.name
        if not plain or "\0" in entry.name or _leads_out("", entry.name) or above & links:
            raise _damaged(version, f"{entry.name!r} would be written outside")
        target = os.fsdecode(entry.content) if entry.kind == "l" else ""
        if entry.kind == "l" and ("\0" in target or not target or _leads_out(entry.name, target)):
            raise _damaged(version, f"link {entry.name} leads outside")


def _is_inside(root: str, path: str) -> bool:
    return path == root or path.startswith(root + os.sep)


class _Bounded:
    """The content of a ``gz``, read once from front to end, and not beyond what a code version may have."""

    def __init__(self, archive: bytes) -> None:
        self._file = gzip.GzipFile(fileobj=io.BytesIO(archive))
        self._left = MAX_BYTES + _OVERHEAD_BYTES

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        content = self._file.read(min(size, self._left + 1))
        self._left -= len(content)
        if self._left < 0:
            raise tarfile.TarError(f"it unpacks to more than {MAX_BYTES >> 20} MiB")
        return content

    def finish(self) -> None:
        """Read to the end, where the checksum is."""
        while self.read(1 << 16):
            pass


def _damaged(version: str, why: str) -> UnknownError:
    return UnknownError(f"the archive of code version {version} is damaged: {why}. Submit the code again.")


def _leads_out(name: str, target: str) -> bool:
    """Return whether ``target``, seen from the file ``name``, is absolute or above the root."""
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return posixpath.isabs(target) or inside.split("/")[0] == ".."


def _read(root: Path, name: str) -> _Entry | None:
    path = root / name
    if path.is_symlink():
        target = os.readlink(path)
        if _leads_out(name, target) or not _is_inside(str(root), os.path.realpath(path)):
            raise SettingsError(
                f"code directory {root}: link {name} leads out of it (to {target}), so other machines would not "
                "have it. Copy the file, or add the link to .gitignore."
            )
        return _Entry(name, "l", os.fsencode(target))
    if not path.is_file():
        return None  # deleted but still in git's index; sockets and pipes
    executable = path.stat().st_mode & stat.S_IXUSR
    return _Entry(name, "x" if executable else "f", path.read_bytes())


def _members(tar: tarfile.TarFile) -> Iterator[_Entry]:
    total = 0
    for member in tar:
        total += member.size
        if total > MAX_BYTES or not (member.isreg() or member.issym()):
            raise tarfile.TarError(f"{member.name} was not packed by Holdfast")
        if member.issym():
            yield _Entry(member.name, "l", os.fsencode(member.linkname))
        else:
            file = tar.extractfile(member)
            yield _Entry(
                member.name, "x" if member.mode & stat.S_IXUSR else "f", file.read() if file else b""
            )


def _write(path: Path, entry: _Entry) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if entry.kind == "l":
        path.symlink_to(os.fsdecode(entry.content))
    else:
        path.write_bytes(entry.content)
        path.chmod(0o755 if entry.kind == "x" else 0o644)


def _version(entries: Iterable[_Entry]) -> str:
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(os.fsencode(f"{entry.kind} {_digest(entry.content)} {entry.name}\0"))
    return digest.hexdigest()[:VERSION_DIGITS]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _compress(entries: Iterable[_Entry]) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=6, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for entry in entries:
            member = tarfile.TarInfo(str(PurePosixPath(entry.name)))  # owner 0, time 0
            if entry.kind == "l":
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, os.fsdecode(entry.content), 0o777
                tar.addfile(member)
            else:
                member.size, member.mode = len(entry.content), 0o755 if entry.kind == "x" else 0o644
                tar.addfile(member, io.BytesIO(entry.content))
    return buffer.getvalue()


def _check_size(root: Path, names: Iterable[str]) -> None:
    sizes = {name: (root / name).lstat().st_size for name in names if os.path.lexists(root / name)}
    total = sum(sizes.values())
    if total > MAX_BYTES:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        listed = ", ".join(f"{name} ({sizes[name] >> 20} MiB)" for name in largest)
        raise SettingsError(
            f"code directory {root} holds {total >> 20} MiB, at most {MAX_BYTES >> 20} MiB can be a code version. "
            f"Largest: {listed}. Put data elsewhere, add it to .gitignore, or name the folder of the code (`code:`)."
        )
