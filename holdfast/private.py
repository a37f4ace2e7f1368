"""Folders and files of this user alone, in places where any user of the machine may make some: /dev/shm, /tmp, home.

Who may make a folder before us owns it, and with it everything that we would put there. So what is found is looked at
through its open descriptor, without following a link, and refused unless it is ours.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from pathlib import Path

from holdfast.errors import SettingsError

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def folder(path: Path, *, or_roots: bool = False) -> Path:
    """Have the folder ``path``, open to this user alone (0700): made, or closed to others if it was open.

    Args:
        path: its parents are made, too, if they are missing.
        or_roots: root may own it as well (a volume that was mounted for us); then it is left as it is.

    Raises:
        SettingsError: it cannot be made, belongs to another user, others could write to it, or it is a link or no
            folder.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    except OSError as error:
        raise SettingsError(
            f"{path}: this folder cannot be made ({error.strerror or error}); expected a place where "
            f"{_user(os.geteuid())} may make one."
        ) from None
    descriptor = _open(path, os.O_RDONLY | os.O_DIRECTORY, "a folder")
    try:
        found = os.fstat(descriptor)
        if or_roots and found.st_uid == 0 != os.geteuid():
            return path
        _require_ours(path, found, "a folder")
        if found.st_mode & stat.S_IWOTH:
            raise SettingsError(
                f"{path}: every user may write to this folder ({stat.filemode(found.st_mode)}), so its content may be "
                "anyone's; expected mode 0700. Look at what is in it, then remove it, or chmod 700 it."
            )
        if found.st_mode & _OTHERS:
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~_OTHERS)
    finally:
        os.close(descriptor)
    return path


def opened(path: str | Path, flags: int) -> int:
    """Open the file ``path``, which is ours; one that is made has mode 0600. Links are not followed.

    Raises:
        SettingsError: it is another user's, a link, or no plain file.
        OSError: it cannot be opened.
    """
    descriptor = _open(Path(path), flags, "a file")
    try:
        found = os.fstat(descriptor)
        _require_ours(Path(path), found, "a file")
        if not stat.S_ISREG(found.st_mode):
            raise SettingsError(f"{path}: this is no plain file ({stat.filemode(found.st_mode)}). Remove it.")
        if found.st_mode & _OTHERS:
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~_OTHERS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open(path: Path, flags: int, kind: str) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        # A link, another kind of file, or one that only its owner may open: report which, if that is the reason.
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            _require_ours(path, found, kind)
            if stat.S_ISLNK(found.st_mode):
                raise SettingsError(
                    f"{path}: this is a symbolic link (to {os.readlink(path)}), expected {kind}; links are not "
                    "followed here. Remove it."
                ) from None
            if (kind == "a folder") != stat.S_ISDIR(found.st_mode):
                raise SettingsError(f"{path}: expected {kind}, this is none. Remove it.") from None
        raise


def _require_ours(path: Path, found: os.stat_result, kind: str) -> None:
    if found.st_uid != os.geteuid():
        raise SettingsError(
            f"{path}: this belongs to {_user(found.st_uid)}, expected {kind} of {_user(os.geteuid())}: another user of "
            "this machine made it, and could read and change what is put there. Have it removed, or chown it."
        )


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"
