"""NVIDIA's management library (NVML) through pynvml: one reading of every GPU, no load on any."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from pydantic import Field

from holdfast.models.base import Frozen

MAX_LINKS = 18  # NVML_NVLINK_MAX_LINKS


class NvLink(Frozen):
    """One NVLink of a GPU."""

    link: int
    active: bool
    errors: dict[str, int] = Field(default_factory=dict)
    """Counter to its value since the driver loaded."""


class GpuReading(Frozen):
    """One GPU now. None: the device does not report it."""

    index: int
    pci: str = ""
    """Bus address as the kernel log writes it (``0000:3b:00``)."""
    error: str = ""
    """NVML's message when the device did not answer; the other fields are empty then."""
    lost: bool = False
    """It did not answer because it is lost, needs a reset, or its driver is gone."""
    uncorrected_ecc: int | None = None
    """Uncorrectable memory errors since the driver loaded."""
    corrected_ecc: int | None = None
    remap_pending: bool | None = None
    """A row of its memory waits for a reset to be remapped."""
    remap_failed: bool | None = None
    """A row of its memory is bad and could not be remapped."""
    temperature_c: int | None = None
    shutdown_c: int | None = None
    """The temperature at which it switches itself off."""
    memory_c: int | None = None
    memory_max_c: int | None = None
    throttle: int | None = None
    """Bits of ``nvmlClocksEventReasons``."""
    pcie_generation: int | None = None
    pcie_best_generation: int | None = None
    pcie_width: int | None = None
    pcie_best_width: int | None = None
    pcie_replays: int | None = None
    busy: int | None = None
    """Utilisation, percent."""
    persistence: bool | None = None
    sm_clock_mhz: int | None = None
    """The clock that applications are set to."""
    default_sm_clock_mhz: int | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    links: tuple[NvLink, ...] = ()


class Gpus(Protocol):
    """The GPUs of this host."""

    def read(self) -> list[GpuReading] | None:
        """Return one reading per GPU; None when there is no driver to ask."""
        ...


class Nvml:
    """The real one. Loads the library at the first reading, and tries again while there is none."""

    def __init__(self) -> None:
        self._library: Any = None
        self._unfit = ""
        """Why the library of this process cannot ask the driver that runs now; empty: it can, or there is none."""

    def read(self) -> list[GpuReading] | None:
        """Return one reading per GPU; None when the library or the driver is absent."""
        nvml = self.loaded()
        if nvml is None:
            return [GpuReading(index=-1, error=self._unfit)] if self._unfit else None
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self._library = None
            return [GpuReading(index=-1, error=str(error), lost=is_lost(nvml, error))]
        return [self._one(nvml, index) for index in range(count)]

    def loaded(self) -> Any:
        """Return the initialised module; None while there is no library or driver."""
        if self._library is None:
            import pynvml  # noqa: PLC0415  (only where inspection runs)

            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError as error:
                # After an upgrade: the GPUs are there, and processes that start now can use them.
                unfit = error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
                self._unfit = str(error) if unfit else ""
                return None
            self._library, self._unfit = pynvml, ""
        return self._library

    def _one(self, nvml: Any, index: int) -> GpuReading:
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            known = _answers(nvml, gpu)
            links = tuple(_links(nvml, gpu))
        except nvml.NVMLError as error:
            return GpuReading(index=index, error=str(error), lost=is_lost(nvml, error))
        return GpuReading(index=index, links=links, **{**known, "pci": known["pci"] or ""})


def is_lost(nvml: Any, error: Any) -> bool:
    """Return whether NVML's error means that nothing can be asked of this GPU any more."""
    return error.value in (
        nvml.NVML_ERROR_GPU_IS_LOST,
        nvml.NVML_ERROR_RESET_REQUIRED,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED,
        nvml.NVML_ERROR_UNKNOWN,
    )


def bus_address(bus_id: Any) -> str:
    """Return NVML's ``00000000:3B:00.0`` as the kernel log writes it, ``0000:3b:00``."""
    text = bus_id.decode(errors="replace") if isinstance(bus_id, bytes) else str(bus_id)
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest.partition('.')[0]}"


def _answers(nvml: Any, gpu: Any) -> dict[str, Any]:
    """Return the answers to all questions; None to those that the device does not support.

    Raises:
        NVMLError: the GPU is lost, or answers nothing but its address for an unknown reason.
    """
    known: dict[str, Any] = {}
    unknown: list[Exception] = []
    for name, ask in _QUESTIONS.items():
        known[name] = _answer(nvml, partial(ask, nvml, gpu), unknown)
    if unknown and all(answer is None for name, answer in known.items() if name != "pci"):
        raise unknown[0]
    return known


def _answer(nvml: Any, question: Callable[[], Any], unknown: list[Exception] | None = None) -> Any:
    """Return the answer; None when the device does not support the question.

    An unknown error is added to ``unknown``: at a single question it is no loss, healthy GPUs have some that their
    driver answers by it.

    Raises:
        NVMLError: the GPU is lost.
    """
    try:
        return question()
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_UNKNOWN:
            if unknown is not None:
                unknown.append(error)
        elif is_lost(nvml, error):
            raise
        return None


def _throttle(nvml: Any, gpu: Any) -> Any:
    try:
        return nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    except nvml.NVMLError_FunctionNotFound:  # drivers before 535 have it under its older name
        return nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)


def _field(nvml: Any, gpu: Any, field: int) -> int | None:
    (answer,) = nvml.nvmlDeviceGetFieldValues(gpu, [field])
    return int(answer.value.uiVal) if answer.nvmlReturn == nvml.NVML_SUCCESS else None


def _shutdown_c(nvml: Any, gpu: Any) -> int | None:
    """Return the temperature at which it switches itself off.

    GPUs since Ada and Hopper report by how much they may still warm up until they slow down, and where on that scale
    (below 0) they switch off.
    """
    try:
        return int(nvml.nvmlDeviceGetTemperatureThreshold(gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN))
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
        (off,) = nvml.nvmlDeviceGetFieldValues(gpu, [nvml.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT])
        if off.nvmlReturn != nvml.NVML_SUCCESS:
            return None
        left = nvml.nvmlDeviceGetMarginTemperature(gpu)
        return int(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU) + left - off.value.siVal)


def _links(nvml: Any, gpu: Any) -> list[NvLink]:
    counters = {
        "replay": nvml.NVML_NVLINK_ERROR_DL_REPLAY,
        "recovery": nvml.NVML_NVLINK_ERROR_DL_RECOVERY,
        "crc_flit": nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
        "crc_data": nvml.NVML_NVLINK_ERROR_DL_CRC_DATA,
    }
    links = []
    for link in range(MAX_LINKS):
        active = _answer(nvml, partial(nvml.nvmlDeviceGetNvLinkState, gpu, link))
        if active is None:  # this GPU has no more links
            break
        errors = {name: _count(nvml, gpu, link, code) for name, code in counters.items()}
        known = {name: count for name, count in errors.items() if count is not None}
        links.append(NvLink(link=link, active=bool(active), errors=known))
    return links


def _count(nvml: Any, gpu: Any, link: int, code: int) -> int | None:
    count = _answer(nvml, partial(nvml.nvmlDeviceGetNvLinkErrorCounter, gpu, link, code))
    return None if count is None else int(count)


_QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "pci": lambda nvml, gpu: bus_address(nvml.nvmlDeviceGetPciInfo(gpu).busId),
    "uncorrected_ecc": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEccErrors(
        gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    ),
    "corrected_ecc": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEccErrors(
        gpu, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC
    ),
    "remap_pending": lambda nvml, gpu: bool(nvml.nvmlDeviceGetRemappedRows(gpu)[2]),
    "remap_failed": lambda nvml, gpu: bool(nvml.nvmlDeviceGetRemappedRows(gpu)[3]),
    "temperature_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    "shutdown_c": _shutdown_c,
    "memory_c": lambda nvml, gpu: _field(nvml, gpu, nvml.NVML_FI_DEV_MEMORY_TEMP),
    "memory_max_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperatureThreshold(
        gpu, nvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX
    ),
    "throttle": _throttle,
    "pcie_generation": lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
    "pcie_best_generation": lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
    "pcie_width": lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
    "pcie_best_width": lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu),
    "pcie_replays": lambda nvml, gpu: nvml.nvmlDeviceGetPcieReplayCounter(gpu),
    "busy": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "persistence": lambda nvml, gpu: bool(nvml.nvmlDeviceGetPersistenceMode(gpu)),
    "sm_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetApplicationsClock(gpu, nvml.NVML_CLOCK_SM),
    "default_sm_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetDefaultApplicationsClock(
        gpu, nvml.NVML_CLOCK_SM
    ),
    "power_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    "default_power_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) / 1000,
}
