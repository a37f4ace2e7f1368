"""GPU inspection: a stub of NVIDIA's library whose values the test sets, read by the real pynvml."""

from __future__ import annotations

import time
from typing import Any

import pytest

from holdfast.agent.inspection.gpu import GpuHealth
from holdfast.agent.inspection.nvml import Nvml, bus_address
from holdfast.agent.inspection.steady import Steady
from holdfast.models.alert import Alert, AlertKind
from tests.agent.inspection.kit import LIMITS, HandClock, kinds, polls, steady
from tests.agent.inspection.nvml_stub import StubGpus


class Watched:
    """A detector over the stub's GPUs, and its clock."""

    def __init__(self, gpus: StubGpus) -> None:
        self.gpus = gpus
        self.clock = HandClock()
        self.detector: Steady = steady(GpuHealth(LIMITS.gpu, Nvml(), self.clock), self.clock)

    def after(self, seconds: float = 10.0, **values: int | None) -> list[Alert]:
        """Set values of GPU 1, let time pass, and poll."""
        self.gpus.gpu(1, **values)
        self.clock.now += seconds
        return self.detector.poll()

    def lasting(self, **values: int | None) -> list[Alert]:
        """Set values of GPU 1 and poll as often as a lasting fault needs, and a few times more."""
        found = self.after(**values)
        for _ in range(LIMITS.gpu.misses + 2):
            self.clock.now += 10
            found += self.detector.poll()
        return found


@pytest.fixture
def watched(gpus: StubGpus) -> Watched:
    found = Watched(gpus)
    assert found.detector.poll() == []
    return found


def test_host_without_driver_has_no_findings(gpus: StubGpus) -> None:
    """No driver, nothing to look at."""
    gpus.set(count=None)
    detector = steady(GpuHealth(LIMITS.gpu, Nvml(), time.monotonic), HandClock())
    assert detector.inspect() == []
    assert detector.poll() == []


def test_everything_is_read_through_the_library(gpus: StubGpus) -> None:
    """Each value of the reading is the library's."""
    gpus.gpu(0, nvlink__0__state=1, nvlink__0__errors__2=5)
    first, second = Nvml().read() or []
    assert (first.pci, second.pci) == ("0000:3b:00", "0000:3c:00")
    assert (first.uncorrected_ecc, first.corrected_ecc) == (2, 10)
    assert (first.remap_pending, first.remap_failed) == (False, False)
    assert (first.temperature_c, first.shutdown_c, first.memory_c, first.memory_max_c) == (60, 95, 70, 105)
    assert (first.pcie_generation, first.pcie_best_generation) == (5, 5)
    assert (first.pcie_width, first.pcie_best_width, first.pcie_replays, first.busy) == (16, 16, 0, 99)
    assert (first.persistence, first.sm_clock_mhz, first.default_sm_clock_mhz) == (True, 1980, 1980)
    assert (first.power_limit_w, first.default_power_limit_w, first.throttle) == (700, 700, 4)
    assert [(link.link, link.active, link.errors) for link in first.links] == [(0, True, {"crc_flit": 5})]
    assert second.links == ()


def test_questions_that_a_gpu_does_not_answer_are_none(gpus: StubGpus) -> None:
    """Not every GPU has ECC; that is no fault."""
    gpus.gpu(0, uncorrected=None, corrected=None, remap_failed=None, memory_temperature=None, sm_clock=None)
    reading = (Nvml().read() or [])[0]
    assert (reading.error, reading.uncorrected_ecc, reading.remap_failed, reading.memory_c) == (
        "",
        None,
        None,
        None,
    )
    detector = steady(GpuHealth(LIMITS.gpu, Nvml(), time.monotonic), HandClock())
    assert polls(detector, 4) == []


def test_a_gpu_that_reports_what_is_left_until_it_slows_down(watched: Watched) -> None:
    """As since Ada and Hopper (an H100: 57 degrees left at 30, off at -8): no threshold of its own, and heat shows."""
    newer = {"shutdown": None, "shutdown_tlimit": -8}
    assert watched.lasting(**newer, temperature=30, margin=57) == []
    assert (Nvml().read() or [])[1].shutdown_c == 95
    assert watched.lasting(temperature=89, margin=-2) == []
    assert kinds(watched.lasting(temperature=92, margin=-5)) == [AlertKind.GPU_TEMPERATURE]


def test_healthy_gpus_pass(watched: Watched) -> None:
    """Old memory errors are not new ones."""
    [finding] = watched.detector.inspect()
    assert finding.ok
    assert "2 GPUs" in finding.detail
    assert watched.lasting() == []


@pytest.mark.parametrize("code", [15, 16, 999])
def test_lost_gpu_is_sure_and_reported_once(watched: Watched, code: int) -> None:
    """Lost, in need of a reset, or unknown: the alert fires at the change, the finding stays."""
    [alert] = watched.after(error=code)
    assert alert.kind is AlertKind.GPU_LOST
    assert alert.evidence["device"] == "GPU 1"
    assert watched.after() == []
    [finding] = watched.detector.inspect()
    assert finding.sure


def test_one_unknown_error_is_no_loss(watched: Watched) -> None:
    """Healthy GPUs answer a question or two by it (999), under one driver or another."""
    assert watched.lasting(replays__error=999, nvlink__0__state__error=999) == []
    [finding] = watched.detector.inspect()
    assert finding.ok
    reading = (Nvml().read() or [])[1]
    assert (reading.error, reading.pcie_replays, reading.temperature_c) == ("", None, 60)


def test_a_gpu_that_answers_its_address_alone_is_lost(watched: Watched) -> None:
    """The library knows the address by itself."""
    names = [name for name in watched.gpus.values if name.startswith("1.")]
    watched.gpus.set(**{f"{name}.error": 999 for name in names})
    assert kinds(watched.after()) == [AlertKind.GPU_LOST]


def test_other_errors_are_no_loss(watched: Watched) -> None:
    """A missing permission (4) or a busy driver would else cost the machine; it is reported when it lasts."""
    [alert] = watched.lasting(handle_error=4)
    assert (alert.kind, alert.evidence["check"]) == (AlertKind.HOST_FAULT, "gpu_error")
    assert all(finding.ok or not finding.sure for finding in watched.detector.inspect())


def test_gpu_that_cannot_be_opened_is_lost(watched: Watched) -> None:
    """No handle for it."""
    assert kinds(watched.after(handle_error=15)) == [AlertKind.GPU_LOST]


def test_missing_gpu_is_noticed(watched: Watched) -> None:
    """A GPU that the driver no longer counts is lost too."""
    watched.gpus.set(count=1)
    [alert] = watched.after()
    assert alert.kind is AlertKind.GPU_LOST
    assert "1 GPUs; 2 were there" in alert.evidence["error"]


def test_driver_that_goes_away_is_noticed(watched: Watched) -> None:
    """All GPUs gone at once; a second look finds no library to ask either."""
    watched.gpus.set(count_error=9)
    [alert] = watched.after()
    assert alert.kind is AlertKind.GPU_LOST
    watched.gpus.set(count=None, count_error=None)
    watched.clock.now += 10
    assert watched.detector.poll() == []  # the same fault
    assert [finding.check for finding in watched.detector.inspect()] == ["gpu_lost"]


def test_a_driver_that_was_upgraded_under_the_agent_loses_no_gpu(watched: Watched) -> None:
    """The agent's library fits it no longer: processes that start now have theirs. It is noted while it lasts."""
    watched.gpus.set(init=18, count_error=18)
    alerts = watched.lasting()
    assert [(each.kind, each.evidence["check"]) for each in alerts] == [(AlertKind.HOST_FAULT, "gpu_error")]
    assert not any(finding.sure for finding in watched.detector.inspect())


AT_ONCE: list[tuple[dict[str, Any], AlertKind]] = [
    ({"uncorrected": 3}, AlertKind.GPU_ECC_UNCORRECTABLE),
    ({"corrected": 5000}, AlertKind.GPU_ECC_CORRECTABLE),
    ({"remap_pending": 1}, AlertKind.GPU_ROW_REMAP_PENDING),
    ({"remap_failed": 1}, AlertKind.GPU_ROW_REMAP_FAILED),
    ({"replays": 100}, AlertKind.GPU_PCIE_REPLAYS),
]


@pytest.mark.parametrize(("values", "kind"), AT_ONCE)
def test_what_does_not_pass_fires_at_once(watched: Watched, values: dict[str, int], kind: AlertKind) -> None:
    """One poll, one alert, which names the GPU; and no second one while it lasts."""
    [alert] = watched.after(**values)
    assert alert.kind is kind
    assert alert.evidence["device"] == "GPU 1"
    if kind is not AlertKind.GPU_PCIE_REPLAYS:
        assert watched.after() == []


LASTING: list[tuple[dict[str, Any], AlertKind]] = [
    ({"temperature": 93}, AlertKind.GPU_TEMPERATURE),
    ({"memory_temperature": 105}, AlertKind.GPU_TEMPERATURE),
    ({"throttle": 0x8}, AlertKind.GPU_THROTTLED),
    ({"throttle": 0x40 | 0x4}, AlertKind.GPU_THROTTLED),
    ({"generation": 3}, AlertKind.GPU_PCIE_LINK),
    ({"width": 8}, AlertKind.GPU_PCIE_LINK),
    ({"width": 8, "busy": 0}, AlertKind.GPU_PCIE_LINK),
    ({"persistence": 0}, AlertKind.GPU_SETTINGS),
    ({"sm_clock": 1410}, AlertKind.GPU_SETTINGS),
    ({"power_limit": 400_000}, AlertKind.GPU_SETTINGS),
]


@pytest.mark.parametrize(("values", "kind"), LASTING)
def test_what_may_pass_has_to_last(watched: Watched, values: dict[str, int], kind: AlertKind) -> None:
    """Nothing at the first look, one alert when it has lasted."""
    assert watched.after(**values) == []
    assert kinds(watched.lasting(**values)) == [kind]


@pytest.mark.parametrize(
    "values",
    [
        {"throttle": 0x1 | 0x2 | 0x4},  # idle, set clocks, power cap
        {"generation": 1, "busy": 0},  # saves power while idle
        {"corrected": 400},
        {"replays": 5},
        {"temperature": 91},
        {"power_limit": 690_000},
    ],
)
def test_everyday_values_are_no_faults(watched: Watched, values: dict[str, int]) -> None:
    """Values of healthy GPUs."""
    assert watched.lasting(**values) == []


def test_correctable_errors_count_by_the_hour(watched: Watched) -> None:
    """A slow trickle is fine however many they become; the same number at once is not."""
    count = 10
    for _ in range(12):
        count += 900
        assert watched.after(3600, corrected=count) == []
    assert kinds(watched.after(corrected=count + 1500)) == [AlertKind.GPU_ECC_CORRECTABLE]


def test_counters_that_restart_are_no_errors(watched: Watched) -> None:
    """The driver was loaded again."""
    assert watched.after(uncorrected=0, corrected=0) == []
    assert kinds(watched.after(uncorrected=1)) == [AlertKind.GPU_ECC_UNCORRECTABLE]


def test_nvlink_down_and_errors(watched: Watched) -> None:
    """A link that was up goes down; counters grow too fast. One alert per link and counter."""
    up = {f"nvlink__{link}__state": 1 for link in range(4)}
    counters = {f"nvlink__{link}__errors__{code}": 0 for link in range(4) for code in range(4)}
    assert watched.after(**up, **counters) == []
    found = watched.after(nvlink__2__state=0, nvlink__3__errors__0=500, nvlink__3__errors__3=500)
    assert kinds(found) == [AlertKind.NVLINK_ERROR] * 3
    assert {(alert.evidence["link"], alert.evidence["counter"]) for alert in found} == {
        (2, "state"),
        (3, "replay"),
        (3, "crc_data"),
    }
    assert len({alert.fingerprint for alert in found}) == 3


def test_nvlink_that_never_was_up_is_not_wired(watched: Watched) -> None:
    """No alert for it."""
    assert watched.lasting(nvlink__0__state=0) == []


def test_a_fault_that_comes_again_is_a_new_signal(watched: Watched) -> None:
    """Each episode has its own fingerprint."""
    [first] = watched.after(error=15)
    assert watched.after(error=None) == []
    [second] = watched.after(error=15)
    assert first.fingerprint != second.fingerprint


def test_inspection_does_not_swallow_an_alert(watched: Watched) -> None:
    """An alert that an inspection on command saw first is reported by the next poll, once."""
    watched.gpus.gpu(1, uncorrected=3)
    watched.clock.now += 1
    assert [finding.sure for finding in watched.detector.inspect()] == [True]
    assert kinds(watched.after()) == [AlertKind.GPU_ECC_UNCORRECTABLE]
    assert watched.after() == []


def test_addresses_are_written_as_in_the_kernel_log() -> None:
    """So that one Xid from two sources is one signal."""
    assert bus_address(b"00000000:3B:00.0") == "0000:3b:00"
    assert bus_address("00010000:AF:00.0") == "0000:af:00"
