"""Runs the detectors on their intervals, and all of them at once on command."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.agent.inspection.base import Detector, Limits
from holdfast.agent.inspection.gpu import GpuDetector
from holdfast.agent.inspection.host import HostDetector
from holdfast.agent.inspection.kernel_log import KernelLogDetector, kernel_log_path
from holdfast.models.alert import Alert, Finding
from holdfast.settings import Settings

log = logging.getLogger(__name__)
_REMEMBERED = 1024


class Inspector:
    """All inspection of one machine. ``emit`` is called on the event loop, once per signal.

    Alerts name the machine; job, epoch and incarnation are for the agent to add. Their fingerprints hold the
    time at which this inspector was made, so that what a later incarnation sees is a new signal.
    """

    def __init__(
        self,
        machine: str,
        home: Path,
        settings: Settings,
        emit: Callable[[Alert], None],
        *,
        limits: Limits | None = None,
        detectors: Sequence[Detector] | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._emit = emit
        self._made_at = time.time()
        self._reported: OrderedDict[str, float] = OrderedDict()
        self._detectors: tuple[Detector, ...] = (
            tuple(detectors)
            if detectors is not None
            else (
                KernelLogDetector(machine, kernel_log_path(home, machine, settings), self._limits),
                GpuDetector(machine, self._limits),
                HostDetector(machine, home, self._limits),
            )
        )

    async def run(self) -> None:
        """Look for ever; ends only by cancellation."""
        async with asyncio.TaskGroup() as group:
            for detector in self._detectors:
                group.create_task(self._watch(detector), name=f"inspect {detector.name}")

    async def inspect(self) -> list[Finding]:
        """Look at everything now. A detector that fails is a finding, not an exception."""
        found = await asyncio.gather(*(self._inspect(detector) for detector in self._detectors))
        return [finding for findings in found for finding in findings]

    async def _watch(self, detector: Detector) -> None:
        while True:
            try:
                alerts = await asyncio.to_thread(detector.poll) if detector.blocking else detector.poll()
            except Exception:  # one broken detector must not end the others
                log.exception("inspection: detector %s failed", detector.name)
                alerts = []
            for alert in alerts:
                self._report(alert)
            await asyncio.sleep(detector.interval_s)

    async def _inspect(self, detector: Detector) -> list[Finding]:
        started = time.perf_counter()
        found = await asyncio.to_thread(detector.inspect) if detector.blocking else detector.inspect()
        seconds = time.perf_counter() - started
        return [finding.model_copy(update={"seconds": seconds}) for finding in found]

    def _report(self, alert: Alert) -> None:
        fingerprint = f"{alert.fingerprint or alert.key}:{self._made_at:.3f}"
        last = self._reported.get(fingerprint)
        if last is not None and alert.at - last < self._limits.repeat_s:
            return
        self._reported[fingerprint] = alert.at
        self._reported.move_to_end(fingerprint)
        while len(self._reported) > _REMEMBERED:
            self._reported.popitem(last=False)
        self._emit(alert.model_copy(update={"fingerprint": fingerprint}))
