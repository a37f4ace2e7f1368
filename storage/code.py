"""Code versions: the job's directory as one archive in S3, named after its content."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from holdfast import durable, failpoint
from holdfast.errors import UnavailableError, UnknownError
from holdfast.storage.archive import Archive, pack, unpack
from holdfast.storage.objects.base import ObjectStore

__all__ = ["Archive", "checkout", "key", "pack", "packed", "place", "store"]

_VERSION = re.compile(r"[0-9a-f]{12}")


def key(job: str, version: str) -> str:
    """Key of a version's archive in S3."""
    return f"{job}/code/{version}.tar.gz"


def store(objects: ObjectStore, job: str, path: Path) -> str:
    """Keep the code in directory ``path`` as a version of ``job``; returns the version.

    The same content has the same version, and is sent once.

    Raises:
        SettingsError: there is no such directory, it is empty, too large, or holds what cannot be packed.
        UnavailableError: the store does not answer.
        UnknownError: the bucket does not exist.
    """
    version, content = pack(path)
    where = key(job, version)
    if not objects.exists(where):
        objects.put(where, content)
        failpoint.here("s3.code")
    return version


def checkout(objects: ObjectStore, job: str, version: str, dest: Path) -> Path:
    """Have the files of a version in directory ``dest``, which appears only when complete.

    A ``dest`` that is there already is taken as it is: processes that check out at once do not disturb one
    another, and one that died half-way leaves nothing under that name.

    Raises:
        UnknownError: no such version, or its archive is damaged.
        UnavailableError: the store does not answer, or ``dest`` cannot be written.
    """
    if dest.is_dir():
        return dest
    if not _VERSION.fullmatch(version):
        raise UnknownError(f"code version {version!r} of job {job!r}: expected 12 hexadecimal digits.")
    place(objects.get(key(job, version)), version, dest)
    return dest


def place(archive: bytes, version: str, dest: Path) -> None:
    """Unpack an archive as directory ``dest``, whole or not at all, and keep the archive beside it.

    Raises:
        UnknownError: it is not the archive of ``version``, or damaged.
        UnavailableError: ``dest`` cannot be written.
    """
    try:
        durable.make_folder(dest.parent)
        _appear(archive, version, dest)
    except OSError as error:
        raise UnavailableError(f"cannot write code version {version} to {dest}: {error.strerror}.") from error


def packed(dest: Path) -> Path:
    """Where the archive of checkout ``dest`` is kept, for other machines to take."""
    return dest.with_name(f"{dest.name}.tar.gz")


def _keep(archive: bytes, version: str, path: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{version}.", delete=False) as new:
        new.write(archive)
    try:
        durable.replace(Path(new.name), path, "archive")
    finally:
        Path(new.name).unlink(missing_ok=True)


def _appear(archive: bytes, version: str, dest: Path) -> None:
    unfinished = Path(tempfile.mkdtemp(dir=dest.parent, prefix=f".{version}."))
    try:
        unpack(archive, version, unfinished)
        unfinished.chmod(0o755)
        # First: a checkout that is there is not looked at again, and its neighbours will ask for this.
        _keep(archive, version, packed(dest))
        durable.replace(unfinished, dest, "code")
    except OSError:
        if not dest.is_dir():  # else another process was faster
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
