"""``HOME/settings.env``: what was chosen at ``holdfast up``, so that every later command finds the same site."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import SecretStr

from holdfast import durable, plugins
from holdfast.settings import FromEnvironment, Settings, read

UP_LOCK = "up.lock"
"""The file that one ``up`` of a folder has locked at a time."""


def is_unfinished(settings: Settings) -> bool:
    """Return whether ``up`` was tried in this folder and never succeeded, so that its gateway's address is not known.

    At the default one may be another site's.
    """
    tried = (settings.home / UP_LOCK).exists() and not _file(settings.home).exists()
    return tried and not settings.model_fields_set & {"gateway_url", "host", "port"}


def remember(settings: Settings) -> None:
    """Write the values that were set explicitly, over those of an earlier ``up``; other lines stay.

    Secrets are left out: they come from the environment or from the secret file.
    """
    path = _file(settings.home)
    new = chosen(settings)
    kept = [line for line in _lines(path) if line.partition("=")[0].strip().upper() not in new]
    text = "\n".join([*kept, *(f"{key}={value}" for key, value in new.items())])
    durable.write(path, f"{text}\n" if text else "", "settings", mode=0o600)


@contextmanager
def kept(home: Path) -> Iterator[None]:
    """Have the file as it was before, if what is done meanwhile fails: the next ``up`` must not fail for it too."""
    path = _file(home)
    before = path.read_text() if path.exists() else None
    try:
        yield
    except BaseException:
        if before is not None:
            durable.write(path, before, "settings", mode=0o600)
        else:
            path.unlink(missing_ok=True)
        raise


def _file(home: Path) -> Path:
    return home / "settings.env"


def chosen(settings: Settings) -> dict[str, str]:
    """Return the values that were set explicitly, as environment variables; no secrets."""
    values = _chosen(settings, settings.secrets_dir)
    for kind in plugins.all_settings().values():
        values |= _chosen(read(kind, settings.home), settings.secrets_dir)
    return values


def _chosen(settings: FromEnvironment, secrets: Path | None) -> dict[str, str]:
    """Return the values of one class; those from the folder of secrets stay there."""
    values = {}
    for name in sorted(settings.model_fields_set - {"home"}):
        value, variable = getattr(settings, name), f"{settings.model_config['env_prefix']}{name}"
        mounted = secrets is not None and (secrets / variable.lower()).exists()
        if not (isinstance(value, SecretStr) or value is None or mounted):
            values[variable.upper()] = str(value)
    return values


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
