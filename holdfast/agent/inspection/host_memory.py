"""Memory of the host that is left."""

from __future__ import annotations

import psutil

from holdfast.agent.inspection.base import Sign
from holdfast.models.alert import AlertKind
from holdfast.policies.config.thresholds import HostLimits


class MemoryCheck:
    """Low memory is worth an alert only when a job cannot go on with what is left: the limit is set low."""

    name = "memory"

    def __init__(self, limits: HostLimits) -> None:
        self._limits = limits

    def look(self) -> list[Sign]:
        """Return one sign."""
        memory = psutil.virtual_memory()
        share, limit = memory.available / memory.total, self._limits.memory_free_share
        return [
            Sign(
                kind=AlertKind.MEMORY_PRESSURE,
                ok=share >= limit,
                detail=f"{memory.available >> 20} MiB of {memory.total >> 20} MiB memory available",
                device="memory",
                value=share,
                limit=limit,
                misses=self._limits.misses,
            )
        ]
