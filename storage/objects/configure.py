"""The object store that the settings name."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast import secret
from holdfast.settings import Settings
from holdfast.storage.objects.base import ObjectStore


def arguments(settings: Settings) -> dict[str, str]:
    """Return how the store at ``settings.s3`` is reached: what ``S3Store`` takes. Holds the secret key.

    Raises:
        SettingsError: no secret key is set and there is no secret file.
    """
    return {
        "endpoint": settings.s3,
        "bucket": settings.s3_bucket,
        "region": settings.s3_region,
        "access_key": settings.s3_access_key,
        "secret_key": settings.s3_secret_key.get_secret_value() or secret.read(settings.s3_secret_path),
    }


def connect(given: Mapping[str, str]) -> ObjectStore:
    """Return the store that :func:`arguments` describes; connects on first use."""
    # boto3 costs 0.15 s and 20 MiB: agents import this package and must not pay for it.
    from holdfast.storage.objects.s3 import S3Store  # noqa: PLC0415

    return S3Store(**given)  # type: ignore[arg-type]


def from_settings(settings: Settings) -> ObjectStore:
    """Return the store at ``settings.s3``; connects on first use.

    Raises:
        SettingsError: no secret key is set and there is no secret file.
    """
    return connect(arguments(settings))
