"""A real GPU's driver, as detectors read it: it agrees with `nvidia-smi`, and accuses no healthy GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.agent.inspection import smi
from holdfast.agent.inspection.activity import Activity
from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.detectors import detectors
from holdfast.agent.inspection.gpu import GpuHealth
from holdfast.agent.inspection.nvml import GpuReading, Nvml
from holdfast.agent.inspection.nvml_events import XidEvents
from holdfast.agent.inspection.roots import Roots
from holdfast.models.agent import Vitals
from holdfast.models.alert import AlertKind
from holdfast.policies.config.policy import Policy
from holdfast.settings import Settings
from tests.e2e.waiting import wait_for
from tests.gpu.load import running
from tests.gpu.recorded import measured, output, record

DETECT = Policy.load().detect
LOADED_S = 3.0
CORES = 128
"""Of an SM of Hopper."""
WARMER_C = 8
"""Degrees by which two readings of one moment may differ."""


@pytest.fixture
def nvml() -> Nvml:
    return Nvml()


def test_material_is_kept(nvml: Nvml) -> None:
    """Tools and raw answers as they are here; each question is answered or refused, none breaks the reading."""
    for name, command in {
        "nvidia-smi.txt": ("nvidia-smi",),
        "nvidia-smi-q.txt": ("nvidia-smi", "-q"),
        "nvidia-smi-q-x.xml": ("nvidia-smi", "-q", "-x"),
        "nvidia-smi-topo.txt": ("nvidia-smi", "topo", "-m"),
        "nvidia-smi-nvlink.txt": ("nvidia-smi", "nvlink", "-s"),
        "dmesg.txt": ("dmesg",),
        "lspci.txt": ("lspci", "-vv", "-d", "10de:"),
        "uname.txt": ("uname", "-a"),
    }.items():
        record(name, output(*command))
    for path in sorted(Path("/proc/driver/nvidia").rglob("*")):
        if path.is_file():
            try:
                record(f"proc-{'-'.join(path.parts[4:])}.txt", path.read_text(errors="replace"))
            except OSError as error:
                record(f"proc-{'-'.join(path.parts[4:])}.txt", f"{error}\n")
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.raw_answers"],
        capture_output=True,
        timeout=60,
        check=False,
        text=True,
    )
    record("nvml.json", done.stdout + done.stderr)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-1000:]}"
    answers = json.loads(done.stdout)
    assert answers["Name"]
    record("reading.json", json.dumps([each.model_dump() for each in nvml.read() or []], indent=1))
    measured(f"{answers['Name']}, driver {answers['driver']}")


def test_a_reading_agrees_with_the_tool_of_the_same_moment(nvml: Nvml) -> None:
    """Whatever both report is the same; what the tool calls N/A or unsupported, NVML does not make up."""
    (reading,) = nvml.read() or ()
    gpu = ElementTree.fromstring(output("nvidia-smi", "-q", "-x")).find("gpu")
    assert gpu is not None
    measured(f"reading: {reading.model_dump(exclude={'links'})}")
    measured(f"links: {sum(each.active for each in reading.links)} of {len(reading.links)} up")
    assert not reading.error
    assert reading.pci == _address(gpu.get("id", ""))
    link = gpu.find("pci/pci_gpu_link_info")
    assert link is not None
    pairs = {
        "generation's best": (reading.pcie_best_generation, _number(link, "pcie_gen/max_link_gen")),
        "width": (reading.pcie_width, _number(link, "link_widths/current_link_width")),
        "width's best": (reading.pcie_best_width, _number(link, "link_widths/max_link_width")),
        "replays": (reading.pcie_replays, _number(gpu, "pci/replay_counter")),
        "power limit": (reading.power_limit_w, _number(gpu, "gpu_power_readings/current_power_limit")),
        "its default": (
            reading.default_power_limit_w,
            _number(gpu, "gpu_power_readings/default_power_limit"),
        ),
        "remapping": (reading.remap_pending, _yes(gpu, "remapped_rows/remapped_row_pending")),
        "its failure": (reading.remap_failed, _yes(gpu, "remapped_rows/remapped_row_failure")),
        "persistence": (reading.persistence, _yes(gpu, "persistence_mode", "Enabled", "Disabled")),
    }
    differ = {name: each for name, each in pairs.items() if None not in each and each[0] != each[1]}
    assert differ == {}
    known = {name for name, each in pairs.items() if None not in each}
    measured(f"compared with nvidia-smi: {', '.join(sorted(known))}")
    assert len(known) >= 5, pairs
    temperature = _number(gpu, "temperature/gpu_temp")
    assert reading.temperature_c is not None
    assert temperature is not None
    assert abs(reading.temperature_c - temperature) <= WARMER_C
    assert 10 < reading.temperature_c < 95
    assert reading.shutdown_c is None or 80 <= reading.shutdown_c <= 110, reading.shutdown_c
    assert reading.uncorrected_ecc in (None, 0), "a GPU with errors is no place for these tests"


def test_the_tools_own_words_are_read_as_the_library_is(nvml: Nvml) -> None:
    """`nvidia-smi -q`, which is asked where NVML has no driver to ask."""
    gpus, (reading,) = smi.read(output("nvidia-smi", "-q")), nvml.read() or ()
    assert [(gpu.index, gpu.pci, gpu.error) for gpu in gpus] == [(0, reading.pci, "")]
    fields = ("uncorrected_ecc", "remap_pending", "remap_failed")
    for field in fields:
        own, other = getattr(gpus[0], field), getattr(reading, field)
        assert own == other or None in (own, other), field
    measured(f"nvidia-smi -q: {', '.join(f'{field} {getattr(gpus[0], field)}' for field in fields)}")


def test_an_idle_gpu_is_accused_of_nothing(nvml: Nvml) -> None:
    """But of settings that are so: persistence mode is off where no daemon keeps it on."""
    (reading,) = nvml.read() or ()
    health = GpuHealth(DETECT.gpu, nvml, time.monotonic)
    signs = [sign for _ in range(4) for sign in health.look()]
    assert _bad(signs, reading) == []


def test_a_gpu_under_full_load_is_accused_of_nothing(nvml: Nvml) -> None:
    """Neither its heat, clocks and link, nor its memory: for seconds, at every look. Its load is seen."""
    (reading,) = nvml.read() or ()
    health = GpuHealth(DETECT.gpu, nvml, time.monotonic)
    activity = _activity(nvml)
    signs: list[Sign] = []
    seen: list[Vitals] = []
    readings: list[GpuReading] = []
    with running("products"):
        wait_for("a busy GPU", lambda: (_polled(activity).gpu_busy or 0.0) > 0.9, 15.0, every_s=0.2)
        ends = time.monotonic() + LOADED_S
        while time.monotonic() < ends:
            signs += health.look()
            seen.append(_polled(activity))
            readings += nvml.read() or []
            time.sleep(0.2)  # a sample of the GPU's counters is taken over as long
    hottest = max(each.temperature_c or 0 for each in readings)
    measured(
        f"full load: {seen[-1]}; hottest {hottest} C; PCIe generation {readings[-1].pcie_generation} of "
        f"{readings[-1].pcie_best_generation}; throttle bits {sorted({each.throttle for each in readings}, key=str)}"
    )
    assert _bad(signs, reading) == []
    assert (seen[-1].gpu_busy or 0.0) > 0.9
    if seen[-1].sm_active is not None:  # Hopper and later, where the driver allows it
        assert seen[-1].sm_active > 0.5
        assert (seen[-1].tensor_active or 0.0) > 0.2


@pytest.mark.parametrize("blocks", [1, 32], ids=["one", "most"])
def test_a_kernel_that_waits_is_distinguished_from_one_that_computes(nvml: Nvml, blocks: int) -> None:
    """The GPU looks fully utilised; tensor cores rest, and all SMs but those that wait: by this hangs are judged."""
    activity = _activity(nvml)
    with running("spin", blocks):
        wait_for("a busy GPU", lambda: (_polled(activity).gpu_busy or 0.0) > 0.9, 15.0, every_s=0.2)
        activity.poll()
        time.sleep(1.0)  # a sample is taken over as long
        found = _polled(activity)
    measured(f"a kernel of {blocks} blocks that waits: {found}")
    if found.tensor_active is None or found.sm_active is None:
        pytest.skip("this GPU does not report how busy its SMs are (Hopper and later do)")
    library = nvml.loaded()
    sms = library.nvmlDeviceGetNumGpuCores(library.nvmlDeviceGetHandleByIndex(0)) / CORES
    assert found.tensor_active < 0.01
    assert found.sm_active == pytest.approx(blocks / sms, abs=0.05)


def test_xid_events_can_be_had(nvml: Nvml) -> None:
    """The driver takes the registration; of a healthy GPU nothing comes."""
    events = XidEvents("m0", 1.0, nvml)
    assert events.poll() == []
    assert events._set is not None, "the driver registers no Xid events for this GPU"


def test_a_round_of_the_inspection_is_short(tmp_path: Path) -> None:
    """Every detector of a machine of its own, under load: none that asks the driver takes a tenth of its interval."""
    roots = Roots(Path("/sys"), Path("/proc"), Path("/dev/kmsg"))
    found, vitals = detectors("m0", tmp_path, Settings(home=tmp_path), DETECT, roots)
    slow: dict[str, float] = {}
    with running("products"):
        for turn in range(2):
            for each in found:
                began = time.perf_counter()
                alerts = each.poll()
                took_s = time.perf_counter() - began
                assert not [alert for alert in alerts if alert.kind in _OF_GPUS], alerts
                if not turn:
                    continue  # the first loads libraries
                measured(f"one look of {each.name}: {1e3 * took_s:.1f} ms of {each.interval_s:g} s")
                if each.name in _ASK_THE_DRIVER and took_s > 0.1 * each.interval_s:
                    slow[each.name] = took_s
    assert slow == {}
    assert vitals().gpu_busy is not None


_ASK_THE_DRIVER = ("gpu", "activity", "nvml_events")
_OF_GPUS = (
    AlertKind.GPU_LOST,
    AlertKind.XID,
    AlertKind.GPU_ECC_UNCORRECTABLE,
    AlertKind.GPU_ROW_REMAP_FAILED,
    AlertKind.GPU_TEMPERATURE,
    AlertKind.GPU_THROTTLED,
    AlertKind.GPU_PCIE_LINK,
    AlertKind.NVLINK_ERROR,
)


def _activity(nvml: Nvml) -> Activity:
    made = Activity(0.5, nvml, Path("/sys"), DETECT.network, time.monotonic)
    made.poll()
    return made


def _polled(activity: Activity) -> Vitals:
    activity.poll()
    return activity.vitals


def _bad(signs: list[Sign], reading: GpuReading) -> list[Sign]:
    """Signs that accuse a healthy GPU: persistence that is off is a setting."""
    off = reading.persistence is False
    return [
        sign for sign in signs if not sign.ok and not (off and sign.evidence.get("setting") == "persistence")
    ]


def _number(node: ElementTree.Element, path: str) -> float | None:
    """The number of ``16x``, ``350.00 W`` or ``35 C``; None of ``N/A``."""
    text = (node.findtext(path) or "").strip().removesuffix("x").split(" ")[0]
    try:
        return float(text)
    except ValueError:
        return None


def _yes(node: ElementTree.Element, path: str, yes: str = "Yes", no: str = "No") -> bool | None:
    return {yes: True, no: False}.get((node.findtext(path) or "").strip())


def _address(bus_id: str) -> str:
    """``00000000:3B:00.0`` as kernel logs have it."""
    domain, bus, device = bus_id.lower().split(":")
    return f"{domain[-4:]}:{bus}:{device.partition('.')[0]}"
