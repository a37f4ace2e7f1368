"""Passwords of URLs, kept out of logs, messages, and what the gateway and the command line show.

Settings such as ``HOLDFAST_DATABASE_URL`` or ``HOLDFAST_PREFECT_API_URL`` may carry one, and libraries put the URL that
they were called with into their errors.
"""

from __future__ import annotations

import re

_HIDDEN = "***"
_USERINFO = re.compile(
    r"""(://[^\s:/?\#@\[]{0,256}:)            # scheme and user; of the scheme its end: texts are long
        (?!\d{1,5}(?:[/?\#,;.\s'")]|$))  # a port: there is no password
        # A password may have an @ or a / in it that was not escaped, and be a token; bounded, as texts are long.
        (?:[^\s/]{0,2048}@|[^\s@]{0,2048}@)
    """,
    re.VERBOSE,
)
_PARAMETER = re.compile(
    r"([?&](?:[a-z_]*password|[a-z_]*secret|token|sig|signature)=)[^&\s'\"]+", re.IGNORECASE
)


def passwords(text: str) -> str:
    """Return ``text`` with each password of a URL in it as ``***``, in front of the host or as a parameter."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(rf"\g<1>{_HIDDEN}", _USERINFO.sub(rf"\g<1>{_HIDDEN}@", text))


def page(gateway: str) -> str:
    """Return the address of the status page that the gateway at this URL serves, as :func:`link` does."""
    return f"{link(gateway).rstrip('/')}/ui/"


def link(url: str) -> str:
    """Return a URL for people to follow: without user and password, which a browser asks for."""
    scheme, mark, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return passwords(f"{scheme}{mark}{place.rpartition('@')[2]}{slash}{path}")
