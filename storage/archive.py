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
from typing import NamedTuple

from holdfast.errors import SettingsError, UnknownError
from holdfast.storage.sources import list_files

MAX_BYTES = 256 << 20
VERSION_DIGITS = 12


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
    """The directory's files: those that git would not ignore, or all besides caches and environments.

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
    """Write the files of ``version`` into the empty ``folder``; nothing is written unless all is as stored.

    Raises:
        UnknownError: it is no such archive, has other content, or holds what :func:`pack` never packs.
    """
    # Not `tarfile.extractall(filter="data")`: Python before 3.11.4 (Debian 12) does not have it.
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            entries = sorted(_members(tar))
    except (tarfile.TarError, EOFError, OSError, zlib.error, ValueError) as error:
        raise _damaged(version, str(error)) from error
    if (found := _version(entries)) != version:
        raise _damaged(version, f"its content is {found}")
    links = {entry.name for entry in entries if entry.kind == "l"}
    for entry in entries:
        above = {str(parent) for parent in PurePosixPath(entry.name).parents}
        if _leads_out("", entry.name) or above & links:
            raise _damaged(version, f"{entry.name} would be written outside")
        if entry.kind == "l" and _leads_out(entry.name, os.fsdecode(entry.content)):
            raise _damaged(version, f"link {entry.name} leads outside")
    for entry in entries:
        _write(folder / entry.name, entry)


def _damaged(version: str, why: str) -> UnknownError:
    return UnknownError(f"the archive of code version {version} is damaged: {why}. Submit the code again.")


def _leads_out(name: str, target: str) -> bool:
    """Whether ``target``, seen from the file ``name``, is absolute or above the root."""
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return posixpath.isabs(target) or inside.split("/")[0] == ".."


def _read(root: Path, name: str) -> _Entry | None:
    path = root / name
    if path.is_symlink():
        target = os.readlink(path)
        if _leads_out(name, target):
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
        digest.update(os.fsencode(f"{entry.kind} {hashlib.sha256(entry.content).hexdigest()} {entry.name}\0"))
    return digest.hexdigest()[:VERSION_DIGITS]


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
            f"Largest: {listed}. Put data elsewhere, or add it to .gitignore."
        )
