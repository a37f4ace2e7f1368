"""NVLinks: those that were up and are down, and error counters that grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.nvml import GpuReading, NvLink
from holdfast.agent.inspection.rates import Rates
from holdfast.models.alert import AlertKind
from holdfast.policies.config.thresholds import GpuLimits


class NvLinks:
    """A link that never was up is not wired."""

    def __init__(self, limits: GpuLimits) -> None:
        self._limits = limits
        self._were_up: set[tuple[int, int]] = set()
        self._errors = Rates()

    def judge(self, gpus: Sequence[GpuReading], now: float) -> list[Sign]:
        """Return bad signs."""
        return [sign for gpu in gpus for link in gpu.links for sign in self._of(gpu, link, now)]

    def _of(self, gpu: GpuReading, link: NvLink, now: float) -> Iterator[Sign]:
        place = (gpu.index, link.link)
        if link.active:
            self._were_up.add(place)
        elif place in self._were_up:
            yield _bad(gpu, link, "state", "down")
        limit = self._limits.nvlink_errors_per_minute
        for name, count in link.errors.items():
            rate = 60 * self._errors.per_s((*place, name), count, now)
            if rate > limit:
                detail = f"{rate:.0f} {name} errors per minute (limit {limit:g})"
                yield _bad(gpu, link, name, detail).model_copy(update={"value": rate, "limit": limit})


def _bad(gpu: GpuReading, link: NvLink, counter: str, text: str) -> Sign:
    return Sign(
        kind=AlertKind.NVLINK_ERROR,
        ok=False,
        detail=f"GPU {gpu.index}: NVLink {link.link}: {text}",
        device=f"GPU {gpu.index}",
        evidence={"link": link.link, "counter": counter},
    )
