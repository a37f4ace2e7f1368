"""Context of most commands: the project's settings and its gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast import envfile
from holdfast import settings as settings_module
from holdfast.client.gateway import Gateway
from holdfast.errors import UnavailableError
from holdfast.settings import Settings


def settings() -> Settings:
    """Return the settings of the project that the current directory lies in.

    Raises:
        SettingsError: outside a project, or a wrong value.
    """
    return settings_module.load()


def of_site() -> Settings:
    """Return the settings of a project whose site was up at least once.

    Raises:
        SettingsError: as :func:`settings`.
        UnavailableError: ``up`` failed there; nothing may be asked of who has the default port.
    """
    known = settings()
    if envfile.is_unfinished(known):
        raise UnavailableError(
            f"no site runs in {known.home}: `holdfast up` failed there, and what it had started is stopped. Run it "
            f"again: it says what is wrong ({known.home / 'logs'} has more)."
        )
    return known


@contextmanager
def gateway() -> Iterator[Gateway]:
    """Open the project's gateway.

    Raises:
        SettingsError: as :func:`of_site`, and UnavailableError.
    """
    with Gateway.open(of_site()) as client:
        yield client
