"""The shared secret of agents, gateway and playbooks: a file that only its owner reads, or the environment.

A secret file may hold several, one per line: the first is sent, all are accepted. So a secret is replaced without a
moment in which two machines do not understand each other: add the new one as second line everywhere, then put it
first everywhere, then remove the old one. The file is read again when it changes.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import durable
from holdfast.errors import SettingsError

if TYPE_CHECKING:
    from holdfast.settings import Settings

_log = logging.getLogger(__name__)

PREFECT_USER = "holdfast"
"""User of the embedded Prefect server's credentials, which `holdfast up` makes."""


class Keys:
    """The secrets that are accepted at this moment, and the one that is sent. Any thread may use it."""

    def __init__(self, path: Path | None = None, given: str = "") -> None:
        """Read the secrets from ``path``, or take those ``given`` (separated by white space), which never change.

        Raises:
            SettingsError: the file is missing, empty, or readable by others.
        """
        self._path = path
        self._lock = threading.Lock()
        self._seen = _version(path) if path else None
        self._keys = _read(path) if path else tuple(given.split())

    @property
    def all(self) -> tuple[str, ...]:
        """All that are accepted; the first is sent."""
        if self._path is not None and _version(self._path) != self._seen:
            self._reload(self._path)
        return self._keys

    @property
    def current(self) -> str:
        """The one that is sent."""
        return self.all[0]

    @property
    def header(self) -> str:
        """Value of the ``Authorization`` header."""
        return f"Bearer {self.current}"

    def accepts(self, secret: str) -> bool:
        """Return whether ``secret`` is accepted; takes the same time whatever it is."""
        # Half a surrogate pair, which JSON can spell, is in no secret.
        given = secret.encode(errors="surrogatepass")
        # All are compared, whichever fits.
        return sum(hmac.compare_digest(given, key.encode()) for key in self.all) > 0

    def match(self, header: str | None) -> bool:
        """Return whether an ``Authorization`` header carries an accepted secret."""
        scheme, _, secret = (header or "").partition(" ")
        return scheme == "Bearer" and self.accepts(secret)

    def _reload(self, path: Path) -> None:
        with self._lock:
            version = _version(path)
            if version == self._seen:
                return
            self._seen = version
            try:
                self._keys = _read(path)
            except SettingsError as error:
                # Half written, or taken away: what was good goes on, until the file changes again.
                _log.error("%s Going on with the secret of before.", error)
            else:
                _log.info("secret file %s: read again, %d accepted", path, len(self._keys))


def of(settings: Settings) -> Keys:
    """Return the secret of a site: ``HOLDFAST_SHARED_SECRET``, or the secret file.

    Raises:
        SettingsError: the file is missing, empty, or readable by others.
    """
    if given := settings.shared_secret.get_secret_value():
        return Keys(given=given)
    return Keys(settings.secret_path)


def prefect_auth(settings: Settings) -> str:
    """Return USER:PASSWORD of the Prefect API; empty: one elsewhere that asks for none.

    Raises:
        SettingsError: the file is missing, readable by others, or holds something else.
    """
    path = settings.prefect_auth_path
    if (given := settings.prefect_auth.get_secret_value()) or path is None:
        return given
    value = read(path)
    if not all(value.partition(":")):
        raise SettingsError(f"{path}: expected USER:PASSWORD in one line. Delete it and run `holdfast up`.")
    return value


def create_prefect_auth(settings: Settings) -> None:
    """Make the embedded Prefect server's USER:PASSWORD if there is none; it stays over restarts."""
    path = settings.prefect_auth_path
    if path is not None and not settings.prefect_auth.get_secret_value() and not settings.prefect_api_url:
        create(path, prefix=f"{PREFECT_USER}:")


def keys(value: str | Keys) -> Keys:
    """Return ``value`` as keys, also when it is a plain secret."""
    return value if isinstance(value, Keys) else Keys(given=value)


def create(path: Path, prefix: str = "") -> str:
    """Make the secret if there is none; returns it."""
    durable.make_folder(path.parent)
    if not path.exists():
        durable.create(path, prefix + secrets.token_urlsafe(32), "secret", mode=0o600)
    return read(path)


def read(path: Path) -> str:
    """Return the secret in ``path``: of several, the one that is sent.

    Raises:
        SettingsError: the file is missing, empty, or readable by others.
    """
    return _read(path)[0]


def matches(header: str | None, secret: str) -> bool:
    """Return whether an ``Authorization`` header carries ``secret``; takes the same time whatever it holds."""
    return hmac.compare_digest((header or "").encode(), f"Bearer {secret}".encode())


def _read(path: Path) -> tuple[str, ...]:
    try:
        found = path.stat()
        value = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        raise SettingsError(f"secret file {path}: {why}. `holdfast up` creates it.") from None
    require_private(f"secret file {path}", found)
    lines = tuple(line.strip() for line in value.splitlines() if line.strip())
    if not lines:
        raise SettingsError(f"secret file {path} is empty: delete it and run `holdfast up`.")
    return lines


def require_private(name: str, found: os.stat_result) -> None:
    """Refuse a file whose mode allows too much: only a group may read, and only another user's file, for us to read.

    Raises:
        SettingsError: it does; the message begins with ``name``.
    """
    mode = found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    mounted = found.st_uid != os.geteuid()
    if mode & ~stat.S_IRGRP if mounted else mode:
        raise SettingsError(
            f"{name} is open to others ({stat.filemode(found.st_mode)}): chmod 600 it (of a Kubernetes secret: "
            "defaultMode 0400)."
        )


def _version(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes with the content: a mounted Kubernetes secret is another file after a change."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
