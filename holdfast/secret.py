"""The shared secret of agents, gateway and playbooks: a file that only its owner reads."""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from pathlib import Path

from holdfast.errors import SettingsError


def create(path: Path) -> str:
    """Make the secret if there is none; returns it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return read(path)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(32))
    return read(path)


def read(path: Path) -> str:
    """The secret in ``path``.

    Raises:
        SettingsError: the file is missing, empty, or readable by others.
    """
    try:
        mode = path.stat().st_mode
        value = path.read_text().strip()
    except OSError as error:
        raise SettingsError(f"secret file {path}: {error.strerror}. `holdfast up` creates it.") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SettingsError(f"secret file {path} is open to others ({stat.filemode(mode)}): chmod 600 it.")
    if not value:
        raise SettingsError(f"secret file {path} is empty: delete it and run `holdfast up`.")
    return value


def matches(header: str | None, secret: str) -> bool:
    """Whether an ``Authorization`` header carries ``secret``; takes the same time whatever it holds."""
    return hmac.compare_digest((header or "").encode(), f"Bearer {secret}".encode())
