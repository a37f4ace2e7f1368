"""The object store that the settings name: the scheme of its URL chooses the kind, built in or of a package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from holdfast import plugins
from holdfast.settings import Settings
from holdfast.storage.objects.base import ObjectStore, StoreKind

_SCHEME = "scheme"


def arguments(settings: Settings, url: str = "") -> dict[str, str]:
    """Return how the store at ``url`` is reached, for :func:`connect` in any process. May hold secrets.

    Args:
        settings: of this site.
        url: the store's, such as ``s3://bucket``; empty: the site's own (``HOLDFAST_STORE``).

    Raises:
        SettingsError: no kind of store has the URL's scheme, or its settings are incomplete.
    """
    url = url or settings.store_url
    scheme = urlsplit(url).scheme
    return {_SCHEME: scheme, **_kind(scheme).arguments(settings, url)}


def connect(given: Mapping[str, str]) -> ObjectStore:
    """Return the store that :func:`arguments` describes; connects on first use. Without a scheme it is S3.

    Raises:
        SettingsError: no kind of store has that scheme here.
    """
    own = {name: value for name, value in given.items() if name != _SCHEME}
    return _kind(given.get(_SCHEME, "s3")).connect(own)


def from_settings(settings: Settings, url: str = "") -> ObjectStore:
    """Return the store at ``url``, by default the site's own; connects on first use.

    Raises:
        SettingsError: as :func:`arguments`.
    """
    return connect(arguments(settings, url))


def _kind(scheme: str) -> StoreKind:
    kind: Any = plugins.load_one(plugins.EntryPoints.STORES, scheme)
    return kind  # type: ignore[no-any-return]
