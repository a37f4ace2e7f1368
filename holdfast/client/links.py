"""Addresses of a site's pages, for people."""

from __future__ import annotations

from holdfast import redact
from holdfast.settings import Settings


def prefect_ui(known: Settings) -> str:
    """Return the address of the Prefect UI, and what it asks for; the password itself is never shown."""
    line = f"Prefect UI: {redact.link(known.prefect_ui)}"
    if known.prefect_auth.get_secret_value():
        return f"{line} (log in with the value of HOLDFAST_PREFECT_AUTH, USER:PASSWORD in one field)"
    if known.prefect_auth_path:
        return f"{line} (log in with the content of {known.prefect_auth_path})"
    return line
