"""Proxies of the environment: what is on this host is called directly.

``HTTP_PROXY`` and its like are set on most corporate hosts. A proxy cannot reach this host's loopback, so without an
exception every call of Prefect's client or of an S3 client to a service of ours would end there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
# Both are read, by some libraries only one of them.
_EXCEPT = ("NO_PROXY", "no_proxy")


def exceptions(environment: Mapping[str, str], hosts: Iterable[str] = LOOPBACK) -> dict[str, str]:
    """Return variables that add ``hosts`` to those called without a proxy; empty: no proxy is set."""
    if not any(environment.get(name) or environment.get(name.lower()) for name in _NAMES):
        return {}
    named = [host.strip() for name in _EXCEPT for host in environment.get(name, "").split(",")]
    merged = ",".join(dict.fromkeys(host for host in (*named, *hosts) if host))
    return dict.fromkeys(_EXCEPT, merged)
