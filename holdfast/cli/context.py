"""Context of most commands: the project's settings and its gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast import redact
from holdfast import settings as settings_module
from holdfast.cli.gateway import Gateway
from holdfast.settings import Settings


def settings() -> Settings:
    """Return the settings of the project that the current directory lies in.

    Raises:
        SettingsError: outside a project, or a wrong value.
    """
    return settings_module.load()


@contextmanager
def gateway() -> Iterator[Gateway]:
    """Open the project's gateway."""
    with Gateway.open(settings()) as client:
        yield client


def prefect_ui(known: Settings) -> str:
    """Return the address of the Prefect UI, and what it asks for; the password itself is never shown."""
    said = f"Prefect UI: {redact.link(known.prefect_ui)}"
    if known.prefect_auth.get_secret_value():
        return f"{said} (log in with the value of HOLDFAST_PREFECT_AUTH, USER:PASSWORD in one field)"
    if known.prefect_auth_path:
        return f"{said} (log in with the content of {known.prefect_auth_path})"
    return said
