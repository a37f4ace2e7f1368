"""Remote storage: whether the S3 endpoint answers at all."""

from __future__ import annotations

import httpx

from holdfast import redact, tls
from holdfast.agent.inspection.base import Sign
from holdfast.models.alert import AlertKind
from holdfast.policies.config.thresholds import StorageLimits

_NOT_IMPLEMENTED = 501


class ObjectStoreAnswers:
    """Any answer below status 500 passes, as does that of a store without this request: rights are not tested here."""

    name = "object_store"

    def __init__(self, endpoint: str, limits: StorageLimits) -> None:
        self._endpoint = endpoint
        self._shown = redact.passwords(endpoint)
        self._limits = limits

    def look(self) -> list[Sign]:
        """Return one sign."""
        error = self._error()
        return [
            Sign(
                kind=AlertKind.STORAGE_UNREACHABLE,
                ok=not error,
                detail=f"{self._shown}: {error or 'answers'}",
                device=self._shown,
                evidence={"endpoint": self._shown, "error": error},
                misses=self._limits.s3_misses,
            )
        ]

    def _error(self) -> str:
        try:
            answer = httpx.head(
                self._endpoint,
                timeout=self._limits.s3_timeout_s,
                follow_redirects=False,
                verify=tls.of_s3(),
            )
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return redact.passwords(f"{type(error).__name__} {error}")[:200]
        failed = answer.status_code >= 500 and answer.status_code != _NOT_IMPLEMENTED
        return f"status {answer.status_code}" if failed else ""
