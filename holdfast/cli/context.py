"""Context of most commands: the project's settings and its gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast import settings as settings_module
from holdfast.client.gateway import Gateway
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
