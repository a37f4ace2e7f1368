"""S3 as a kind of store: what ``s3://BUCKET`` means. Imports boto3 only to connect."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from holdfast import secret
from holdfast.settings import Settings
from holdfast.storage.objects.base import ObjectStore


class S3:
    """A :class:`~holdfast.storage.objects.base.StoreKind`."""

    @staticmethod
    def arguments(settings: Settings, url: str) -> dict[str, str]:
        """Return what ``S3Store`` takes: with ``keys`` the secret key too, and the session token of temporary ones.

        Raises:
            SettingsError: no secret key is set and there is no secret file.
        """
        return {
            "endpoint": settings.s3,
            "bucket": urlsplit(url).netloc,
            "region": settings.s3_region,
            "read_timeout_s": str(settings.s3_read_s),
            **(_keys(settings) if settings.s3_credentials == "keys" else {}),
            **({"addressing": settings.s3_addressing} if settings.s3_addressing != "path" else {}),
        }

    @staticmethod
    def connect(arguments: Mapping[str, str]) -> ObjectStore:
        """Return the bucket; connects on first use."""
        # boto3 costs 0.15 s and 20 MiB: agents import this package and must not pay for it.
        from holdfast.storage.objects.s3 import S3Store  # noqa: PLC0415
        from holdfast.storage.objects.s3_requests import READ_TIMEOUT_S  # noqa: PLC0415

        given = {**arguments, "read_timeout_s": float(arguments.get("read_timeout_s", READ_TIMEOUT_S))}
        return S3Store(**given)  # type: ignore[arg-type]


def _keys(settings: Settings) -> dict[str, str]:
    token = settings.s3_session_token.get_secret_value()
    return {
        "access_key": settings.s3_access_key,
        "secret_key": settings.s3_secret_key.get_secret_value() or secret.read(settings.s3_secret_path),
        **({"session_token": token} if token else {}),
    }
