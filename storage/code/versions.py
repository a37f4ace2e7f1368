"""Code versions: the job's directory as one archive in S3, named after its content."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from holdfast import durable, failpoint
from holdfast.errors import UnavailableError, UnknownError
from holdfast.storage.code.archive import Archive, content, difference, listing, pack, unpack
from holdfast.storage.objects.base import ObjectStore

__all__ = ["Archive", "checkout", "key", "look", "pack", "packed", "place", "repair", "store", "text"]

_VERSION = re.compile(r"[0-9a-f]{12}")


def key(job: str, version: str) -> str:
    """Key of a version's archive in S3."""
    return f"{job}/code/{version}.tar.gz"


def store(objects: ObjectStore, job: str, path: Path) -> str:
    """Keep the code in directory ``path`` as a version of ``job``; returns the version.

    The same content has the same version, and is sent once, unless what the store has of it is damaged.

    Raises:
        SettingsError: there is no such directory, it is empty, too large, or holds what cannot be packed.
        UnavailableError: the store does not answer.
        UnknownError: the bucket does not exist.
    """
    version, content = pack(path)
    where = key(job, version)
    if not _is_whole(objects, where, version):
        objects.put(where, content)
        failpoint.here("s3.code")
    return version


def _is_whole(objects: ObjectStore, where: str, version: str) -> bool:
    try:
        listing(objects.get(where), version)
    except UnknownError:
        return False
    return True


def checkout(objects: ObjectStore, job: str, version: str, dest: Path) -> Path:
    """Have the files of a version in directory ``dest``, which appears only when complete.

    A ``dest`` that is there already and whole is taken as it is: processes that check out at once do not disturb one
    another, and one that died half-way leaves nothing under that name.

    Raises:
        UnknownError: no such version, or its archive is damaged.
        UnavailableError: the store does not answer, or ``dest`` cannot be written.
    """
    if not _VERSION.fullmatch(version):
        raise UnknownError(f"code version {version!r} of job {job!r}: expected 12 hexadecimal digits.")
    if not look(version, dest).broken:
        return dest
    place(objects.get(key(job, version)), version, dest)
    return dest


def text(objects: ObjectStore, job: str, version: str, name: str) -> str | None:
    """Return a source file as a version has it; None: it has no such file.

    Raises:
        UnknownError: no such version, or its archive is damaged.
        UnavailableError: the store does not answer.
    """
    found = content(objects.get(key(job, version)), version, name)
    return None if found is None else found.decode(errors="replace")


class Looked(NamedTuple):
    """The state of the folder where a checkout should be."""

    broken: str
    """Why it is not whole, in words; empty when every file is as it was stored."""
    names: tuple[str, ...] = ()
    """Of its files, as far as they are known."""


def look(version: str, dest: Path) -> Looked:
    """Compare checkout ``dest`` with the archive beside it, and that with its version. Reads all of both."""
    if not dest.is_dir():
        return Looked("it is not there")
    try:
        listed = listing(packed(dest).read_bytes(), version)
    except (OSError, UnknownError) as error:
        return Looked(f"what it should hold is not known: {error}")
    return Looked(difference(dest, listed), tuple(each.name for each in listed))


def repair(version: str, dest: Path) -> bool:
    """Unpack a checkout again from the archive beside it; return whether that archive was whole."""
    try:
        place(packed(dest).read_bytes(), version, dest)
    except (OSError, UnknownError):
        return False
    return True


def place(archive: bytes, version: str, dest: Path) -> None:
    """Unpack an archive as directory ``dest``, whole or not at all, and keep the archive beside it.

    All is on the disk before it appears under its name; a broken ``dest`` is replaced.

    Raises:
        UnknownError: it is not the archive of ``version``, or damaged.
        UnavailableError: ``dest`` cannot be written.
    """
    try:
        durable.make_folder(dest.parent)
        unfinished = Path(tempfile.mkdtemp(dir=dest.parent, prefix=f".{version}."))
        try:
            unpack(archive, version, unfinished)
            unfinished.chmod(0o755)
            # First: its neighbours will ask for this as soon as the checkout is there.
            _keep(archive, version, packed(dest))
            _appear(unfinished, version, dest)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise UnavailableError(f"cannot write code version {version} to {dest}: {error.strerror}.") from error


def packed(dest: Path) -> Path:
    """Return where the archive of checkout ``dest`` is kept, for other machines to take."""
    return dest.with_name(f"{dest.name}.tar.gz")


def _keep(archive: bytes, version: str, path: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{version}.", delete=False) as new:
        new.write(archive)
    try:
        durable.replace(Path(new.name), path, "archive")
    finally:
        Path(new.name).unlink(missing_ok=True)


def _appear(unfinished: Path, version: str, dest: Path) -> None:
    try:
        durable.replace(unfinished, dest, "code")
    except OSError:
        if not dest.is_dir():
            raise
        if look(version, dest).broken:  # else another process was faster
            # Processes that still run there keep it until they end.
            dest.rename(unfinished.with_name(f"{unfinished.name}.broken"))
            durable.replace(unfinished, dest, "code")
            shutil.rmtree(unfinished.with_name(f"{unfinished.name}.broken"), ignore_errors=True)
