"""GPU inspection against scripted GPUs."""

from __future__ import annotations

from holdfast.agent.inspection.base import Limits
from holdfast.agent.inspection.gpu import GpuDetector
from holdfast.agent.inspection.nvml import GpuReading, Nvml
from holdfast.models.alert import AlertKind


class FakeGpus:
    """Answers what it is told to."""

    def __init__(self, *readings: GpuReading) -> None:
        self.readings: list[GpuReading] | None = list(readings)

    def read(self) -> list[GpuReading] | None:
        return self.readings


def detector(gpus: FakeGpus) -> GpuDetector:
    return GpuDetector("m0", Limits(), gpus)


def healthy(index: int) -> GpuReading:
    return GpuReading(index=index, uncorrected_ecc=2, remap_failed=False, temperature_c=60, shutdown_c=95)


def test_host_without_driver_has_no_findings() -> None:
    """No library, nothing to look at."""
    gpus = FakeGpus()
    gpus.readings = None
    assert detector(gpus).inspect() == []
    assert detector(gpus).poll() == []


def test_real_library_does_not_raise_here() -> None:
    """With or without a GPU on this host."""
    Nvml().read()


def test_healthy_gpus_pass() -> None:
    """Old memory errors are not new ones."""
    [finding] = detector(FakeGpus(healthy(0), healthy(1))).inspect()
    assert finding.ok
    assert "2 GPUs" in finding.detail


def test_lost_gpu_is_sure_and_reported_once() -> None:
    """The alert fires at the change, the finding stays."""
    gpus = FakeGpus(healthy(0), healthy(1))
    looking = detector(gpus)
    assert looking.poll() == []
    gpus.readings = [healthy(0), GpuReading(index=1, error="GPU is lost", lost=True)]
    [alert] = looking.poll()
    assert alert.kind is AlertKind.GPU_LOST
    assert "GPU 1" in alert.evidence["error"]
    assert looking.poll() == []
    [finding] = looking.inspect()
    assert finding.sure


def test_missing_gpu_is_noticed() -> None:
    """A GPU that the driver no longer counts is lost too."""
    gpus = FakeGpus(healthy(0), healthy(1))
    looking = detector(gpus)
    looking.poll()
    gpus.readings = [healthy(0)]
    assert [alert.kind for alert in looking.poll()] == [AlertKind.GPU_LOST]


def test_driver_that_goes_away_is_noticed() -> None:
    """All GPUs gone at once."""
    gpus = FakeGpus(healthy(0))
    looking = detector(gpus)
    looking.poll()
    gpus.readings = None
    assert [finding.check for finding in looking.inspect()] == ["gpu_lost"]


def test_new_memory_errors_and_failed_remap_are_sure() -> None:
    """The hardware itself says so."""
    gpus = FakeGpus(healthy(0))
    looking = detector(gpus)
    looking.poll()
    gpus.readings = [healthy(0).model_copy(update={"uncorrected_ecc": 3, "remap_failed": True})]
    findings = looking.inspect()
    assert {finding.check for finding in findings} == {"gpu_ecc", "gpu_row_remap"}
    assert all(finding.sure for finding in findings)


def test_hot_gpu_is_not_sure() -> None:
    """Heat may come from outside the machine."""
    [finding] = detector(FakeGpus(healthy(0).model_copy(update={"temperature_c": 94}))).inspect()
    assert not finding.ok
    assert not finding.sure
