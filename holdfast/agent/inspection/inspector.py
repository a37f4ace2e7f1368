"""Runs the detectors on their intervals, and all of them at once on command."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from holdfast.agent.inspection.base import Detector
from holdfast.models.alert import Alert, AlertKind, Finding
from holdfast.policies.config.thresholds import IntervalsPolicy

log = logging.getLogger(__name__)
Result = TypeVar("Result")
_REMEMBERED = 1024
_INSPECT_S = 8.0
"""Longest wait for one detector when all are asked at once."""
SELF_CHECKS = 4
SELF_CHECK_PAUSE_S = 3.0
_EVIDENCE = frozenset({"smart"})
"""Detectors whose faults keep no machine out: they only explain a failure. A recovery asks them."""
_AT_EXIT = frozenset({"kernel_log", "oom_kills"})
"""Detectors that read what the kernel noted of a process that it ended, without blocking."""


class Inspector:
    """All inspection of one machine. ``emit`` is called on the event loop, once per signal.

    Alerts name the machine; job, epoch and incarnation are for the agent to add. Their fingerprints hold the
    time at which this inspector was made, so that what a later incarnation sees is a new signal.

    A detector that blocks has a thread of its own: one that is stuck in a driver holds up no other.
    """

    def __init__(
        self,
        machine: str,
        detectors: Sequence[Detector],
        intervals: IntervalsPolicy,
        emit: Callable[[Alert], None],
    ) -> None:
        self._machine = machine
        self._intervals = intervals
        self._emit = emit
        self._made_at = time.time()
        self._reported: OrderedDict[str, float] = OrderedDict()
        self._detectors = tuple(detectors)
        self._threads: dict[str, Executor] = {
            each.name: ThreadPoolExecutor(1, f"inspect-{each.name}") for each in detectors if each.blocking
        }

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            for detector in self._detectors:
                group.create_task(self._watch(detector), name=f"inspect {detector.name}")

    async def inspect(self, without: Collection[str] = ()) -> list[Finding]:
        """Inspect everything now, ``without`` some detectors.

        A detector that fails or does not answer is a finding, not an exception.
        """
        asked = [detector for detector in self._detectors if detector.name not in without]
        found = await asyncio.gather(*(self._inspect(detector) for detector in asked))
        return [finding for findings in found for finding in findings]

    async def self_check(
        self, times: int = SELF_CHECKS, pause_s: float = SELF_CHECK_PAUSE_S
    ) -> list[Finding]:
        """Inspect everything before the machine joins; repeat while a failure may have another cause.

        A busy host makes a detector late; only a failure that persists, or is sure, may keep the machine out.
        """
        found = await self.inspect(_EVIDENCE)
        for _ in range(times - 1):
            failed = [finding for finding in found if not finding.ok]
            if not failed or any(finding.sure for finding in failed):
                break
            log.warning("self-check: %s; looking again", "; ".join(f"{f.check}: {f.detail}" for f in failed))
            await asyncio.sleep(pause_s)
            found = await self.inspect(_EVIDENCE)
        return found

    def look_at_exit(self) -> None:
        """Report at once what the kernel noted, when a rank ended.

        On their intervals these detectors may look only after the incident of the exit was opened without them.
        """
        for detector in self._detectors:
            if detector.name not in _AT_EXIT or detector.blocking:
                continue
            try:
                alerts = detector.poll()
            except Exception:  # the exit is reported in any case
                log.exception("inspection: detector %s failed", detector.name)
                continue
            for alert in alerts:
                self._report(alert)

    async def _watch(self, detector: Detector) -> None:
        while True:
            try:
                alerts = await self._poll(detector)
            except Exception:  # one broken detector must not end the others
                log.exception("inspection: detector %s failed", detector.name)
                alerts = []
            for alert in alerts:
                self._report(alert)
            await asyncio.sleep(detector.interval_s)

    async def _poll(self, detector: Detector) -> list[Alert]:
        """Poll; when that takes longer than a stall, report it once and go on waiting."""
        if not detector.blocking:
            return detector.poll()
        polling = asyncio.ensure_future(self._call(detector, detector.poll))
        done, _ = await asyncio.wait([polling], timeout=self._intervals.stalled_s)
        if not done:
            log.error(
                "inspection: detector %s has not returned for %.0f s",
                detector.name,
                self._intervals.stalled_s,
            )
            if detector.name == "gpu":
                self._report(self._stalled())
        return await polling

    async def _inspect(self, detector: Detector) -> list[Finding]:
        started = time.perf_counter()
        try:
            found = await asyncio.wait_for(self._call(detector, detector.inspect), _INSPECT_S)
        except TimeoutError:
            found = [self._no_result(detector, f"no answer within {_INSPECT_S:.0f} s")]
        except Exception as error:
            log.exception("inspection: detector %s failed", detector.name)
            found = [self._no_result(detector, f"failed: {error}")]
        seconds = time.perf_counter() - started
        return [finding.model_copy(update={"seconds": seconds}) for finding in found]

    async def _call(self, detector: Detector, call: Callable[[], Result]) -> Result:
        thread = self._threads.get(detector.name)
        if thread is None:
            return call()
        return await asyncio.get_running_loop().run_in_executor(thread, call)

    def _no_result(self, detector: Detector, detail: str) -> Finding:
        return Finding(check=detector.name, machine=self._machine, ok=False, detail=detail[:300])

    def _stalled(self) -> Alert:
        waited = self._intervals.stalled_s
        error = f"the driver has not answered for {waited:.0f} s"
        return Alert(
            kind=AlertKind.GPU_LOST,
            machine=self._machine,
            at=time.time(),
            fingerprint=f"gpu_stalled:{self._machine}",
            evidence={"device": "driver", "error": error, "detail": error, "value": waited, "limit": waited},
        )

    def _report(self, alert: Alert) -> None:
        fingerprint = f"{alert.fingerprint or alert.key}:{self._made_at:.3f}"
        last = self._reported.get(fingerprint)
        # Of the machine's clock: one that was set back would keep the signal back for as long.
        if last is not None and 0.0 <= alert.at - last < self._intervals.repeat_s:
            return
        self._reported[fingerprint] = alert.at
        self._reported.move_to_end(fingerprint)
        while len(self._reported) > _REMEMBERED:
            self._reported.popitem(last=False)
        self._emit(alert.model_copy(update={"fingerprint": fingerprint}))
