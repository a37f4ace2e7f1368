"""NVIDIA's management library (NVML) behind a small Protocol, so that tests need no GPU."""

from __future__ import annotations

from typing import Any, Protocol

from holdfast.models.base import Frozen


class GpuReading(Frozen):
    """One GPU now. None: the device does not tell."""

    index: int
    error: str = ""
    """NVML's words when the device did not answer; the other fields are empty then."""
    lost: bool = False
    """It did not answer because it is lost or needs a reset."""
    uncorrected_ecc: int | None = None
    """Uncorrected memory errors since the driver loaded."""
    remap_failed: bool | None = None
    """A row of its memory is bad and could not be remapped."""
    temperature_c: int | None = None
    shutdown_c: int | None = None
    """The temperature at which it switches itself off."""


class Gpus(Protocol):
    """The GPUs of this host."""

    def read(self) -> list[GpuReading] | None:
        """One reading per GPU; None when there is no driver to ask."""
        ...


class Nvml:
    """The real one. Loads the library at the first reading, and tries again while there is none."""

    def __init__(self) -> None:
        self._library: Any = None

    def read(self) -> list[GpuReading] | None:
        """One reading per GPU; None when the library or the driver is absent."""
        nvml = self._loaded()
        if nvml is None:
            return None
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self._library = None
            return [GpuReading(index=-1, error=str(error), lost=_is_lost(nvml, error))]
        return [self._one(nvml, index) for index in range(count)]

    def _loaded(self) -> Any:
        if self._library is None:
            import pynvml  # noqa: PLC0415  (only where inspection runs)

            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError:
                return None
            self._library = pynvml
        return self._library

    def _one(self, nvml: Any, index: int) -> GpuReading:
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            return GpuReading(index=index, error=str(error), lost=_is_lost(nvml, error))
        remapped = _or_none(nvml, lambda: nvml.nvmlDeviceGetRemappedRows(gpu)[3])
        return GpuReading(
            index=index,
            temperature_c=_or_none(
                nvml, lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)
            ),
            shutdown_c=_or_none(
                nvml,
                lambda: nvml.nvmlDeviceGetTemperatureThreshold(gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
            ),
            uncorrected_ecc=_or_none(
                nvml,
                lambda: nvml.nvmlDeviceGetTotalEccErrors(
                    gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                ),
            ),
            remap_failed=None if remapped is None else bool(remapped),
        )


def _or_none(nvml: Any, call: Any) -> Any:
    """What ``call`` returns; None when the device does not support the question."""
    try:
        return call()
    except nvml.NVMLError:
        return None


def _is_lost(nvml: Any, error: Any) -> bool:
    return error.value in (
        nvml.NVML_ERROR_GPU_IS_LOST,
        nvml.NVML_ERROR_RESET_REQUIRED,
        nvml.NVML_ERROR_UNKNOWN,
    )
