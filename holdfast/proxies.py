"""Proxies of the environment: what is on this host is called directly.

``HTTP_PROXY`` and its like are set on most corporate hosts. A proxy cannot reach this host's loopback, so without an
exception every call of Prefect's client or of an S3 client to a service of ours would end there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.errors import SettingsError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
# Both are read, by some libraries only one of them.
_EXCEPT = ("NO_PROXY", "no_proxy")
_SCHEMES = ("http", "https", "socks5", "socks5h")


def exceptions(environment: Mapping[str, str], hosts: Iterable[str] = LOOPBACK) -> dict[str, str]:
    """Return variables that add ``hosts`` to those called without a proxy; empty: no proxy is set."""
    if not any(environment.get(name) or environment.get(name.lower()) for name in _NAMES):
        return {}
    named = [host.strip() for name in _EXCEPT for host in environment.get(name, "").split(",")]
    merged = ",".join(dict.fromkeys(host for host in (*named, *hosts) if host))
    return dict.fromkeys(_EXCEPT, merged)


def require_usable(environment: Mapping[str, str]) -> None:
    """Refuse a proxy that no HTTP client here can use: each of them, Prefect's too, fails as it is made.

    Raises:
        SettingsError: a variable names a proxy of another kind.
    """
    for name in (each for upper in _NAMES for each in (upper, upper.lower())):
        scheme, separator, _ = environment.get(name, "").partition("://")
        if separator and scheme.lower() not in _SCHEMES:
            raise SettingsError(
                f"{name}: expected a proxy of kind {', '.join(_SCHEMES[:-1])} or {_SCHEMES[-1]}, not {scheme!r}; "
                "change or unset it."
            )
