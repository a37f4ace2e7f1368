"""What most commands begin with: the project's settings and its gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast import settings as settings_module
from holdfast.cli.gateway import Gateway
from holdfast.settings import Settings


def settings() -> Settings:
    """Settings of the project that the current directory lies in.

    Raises:
        SettingsError: outside a project, or a wrong value.
    """
    return settings_module.load()


@contextmanager
def gateway() -> Iterator[Gateway]:
    """The project's gateway."""
    with Gateway.open(settings()) as client:
        yield client
