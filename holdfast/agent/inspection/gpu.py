"""GPUs through the driver: lost or missing ones, memory errors, failed row remapping, temperature."""

from __future__ import annotations

import time

from holdfast.agent.inspection.base import Limits
from holdfast.agent.inspection.nvml import GpuReading, Gpus, Nvml
from holdfast.models.alert import Alert, AlertKind, Finding


class GpuDetector:
    """Compares readings with the first one; without a driver it sees nothing and says nothing."""

    name = "gpu"
    blocking = True  # the driver may take long to answer for a broken device

    def __init__(self, machine: str, limits: Limits, gpus: Gpus | None = None) -> None:
        self.interval_s = limits.gpu_s
        self._machine = machine
        self._gpus = gpus or Nvml()
        self._count = 0
        self._ecc: dict[int, int] = {}
        self._reported: set[str] = set()

    def poll(self) -> list[Alert]:
        """Alerts for what became bad since the last call."""
        findings = self._look()
        failing = {finding.detail: finding for finding in findings if not finding.ok}
        fresh = [finding for detail, finding in failing.items() if detail not in self._reported]
        self._reported = set(failing)
        return [self._alert(finding) for finding in fresh]

    def inspect(self) -> list[Finding]:
        """One finding per GPU and failure; a lost GPU is sure, a hot one is not."""
        return self._look()

    def _look(self) -> list[Finding]:
        readings = self._gpus.read()
        if readings is None:
            if not self._count:
                return []
            return [self._finding("gpu_lost", f"the driver is gone; {self._count} GPUs were there before")]
        findings = [finding for reading in readings for finding in self._judge(reading)]
        if len(readings) < self._count and not any(reading.error for reading in readings):
            detail = f"{len(readings)} GPUs, {self._count} were there before"
            findings.append(self._finding("gpu_lost", detail))
        self._count = max(self._count, sum(reading.index >= 0 for reading in readings))
        return findings or [
            Finding(check="gpu", machine=self._machine, ok=True, detail=f"{len(readings)} GPUs")
        ]

    def _judge(self, gpu: GpuReading) -> list[Finding]:
        where = f"GPU {gpu.index}" if gpu.index >= 0 else "driver"
        if gpu.error:
            check = "gpu_lost" if gpu.lost else "gpu_error"
            return [self._finding(check, f"{where}: {gpu.error}", sure=gpu.lost)]
        found = []
        if gpu.uncorrected_ecc is not None:
            before = self._ecc.setdefault(gpu.index, gpu.uncorrected_ecc)
            if gpu.uncorrected_ecc > before:
                found.append(
                    self._finding("gpu_ecc", f"{where}: {gpu.uncorrected_ecc} uncorrected memory errors")
                )
        if gpu.remap_failed:
            found.append(self._finding("gpu_row_remap", f"{where}: a memory row could not be remapped"))
        if gpu.temperature_c is not None and gpu.shutdown_c and gpu.temperature_c >= gpu.shutdown_c - 3:
            detail = f"{where}: within 3 degrees of switching itself off at {gpu.shutdown_c} C"
            found.append(self._finding("gpu_temperature", detail, sure=False))
        return found

    def _finding(self, check: str, detail: str, *, sure: bool = True) -> Finding:
        return Finding(check=check, machine=self._machine, ok=False, sure=sure, detail=detail)

    def _alert(self, finding: Finding) -> Alert:
        lost = finding.check == "gpu_lost"
        return Alert(
            kind=AlertKind.GPU_LOST if lost else AlertKind.HOST_FAULT,
            machine=self._machine,
            at=time.time(),
            fingerprint=f"{finding.check}:{self._machine}:{finding.detail}",
            evidence={
                "check": finding.check,
                "error": finding.detail,
                "value": finding.detail,
                "limit": "none",
                "sure": finding.sure,
            },
        )
