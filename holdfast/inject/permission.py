"""Whether a site may be broken at all."""

from __future__ import annotations

from holdfast.errors import RefusedError
from holdfast.settings import Settings


def require_site(settings: Settings) -> None:
    """Refuse a site that does not allow chaos.

    Raises:
        RefusedError: the site does not allow it; the message shows how to allow it.
    """
    allowed = settings.driver == "local" if settings.chaos_allowed is None else settings.chaos_allowed
    if not allowed:
        raise RefusedError(
            f"this site does not allow chaos (driver {settings.driver}, HOLDFAST_CHAOS_ALLOWED = "
            f"{settings.chaos_allowed if settings.chaos_allowed is not None else 'empty'}). It kills processes of a "
            "training job and of the control plane. Where that is wanted, write HOLDFAST_CHAOS_ALLOWED=true into "
            f"{settings.home / 'settings.env'} and run it again."
        )
