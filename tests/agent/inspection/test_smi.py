"""GPUs through an ``nvidia-smi`` that prints what the real tool printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.agent.inspection.nvml import GpuReading
from holdfast.agent.inspection.smi import Smi, read
from holdfast.agent.inspection.tool import Tool
from holdfast.models.alert import AlertKind
from tests.agent.inspection.stub_tools import Machine, detector_of, of_local_driver
from tests.corpus.items import real

TOOL = "nvidia-smi"


class Library:
    """NVML with or without a driver."""

    def __init__(self, found: list[GpuReading] | None) -> None:
        self.found = found

    def read(self) -> list[GpuReading] | None:
        """The readings that the test set."""
        return self.found


def test_the_agents_own_detectors_find_a_lost_gpu(tmp_path: Path) -> None:
    """On a host where NVML has no driver to ask."""
    machine = of_local_driver(tmp_path)
    machine.prints(TOOL, real("g-unknown-error-of-one"), status=255)
    [alert] = detector_of(machine, "gpu").poll()
    assert (alert.kind, alert.evidence["device"]) == (AlertKind.GPU_LOST, "GPU 1")
    assert alert.evidence["pci"] == "0000:34:00"
    [finding] = detector_of(machine, "gpu").inspect()
    assert (finding.ok, finding.sure) == (False, True)


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        (
            ("Pending                           : No", "Pending                           : Yes"),
            AlertKind.GPU_ROW_REMAP_PENDING,
        ),
        (("Occurred        : No", "Occurred        : Yes"), AlertKind.GPU_ROW_REMAP_FAILED),
    ],
)
def test_rows_that_wait_or_could_not_be_remapped(
    tmp_path: Path, changed: tuple[str, str], kind: AlertKind
) -> None:
    """In the output of a healthy machine, changed in one place: no real one of a failed remap was found."""
    machine = of_local_driver(tmp_path)
    machine.prints(TOOL, real("g-4090-healthy").replace(*changed))
    assert {alert.kind for alert in detector_of(machine, "gpu").poll()} == {kind}


def test_memory_errors_that_are_new_are_reported(tmp_path: Path) -> None:
    """Volatile uncorrectable ones; those that were there at the first look are old."""
    machine = of_local_driver(tmp_path)
    detector = detector_of(machine, "gpu")
    text = real("g-a100-remap-pending").replace("Pending                           : Yes", "Pending : No")
    machine.prints(TOOL, text)
    assert detector.poll() == []
    machine.prints(
        TOOL, text.replace("DRAM Uncorrectable            : 0", "DRAM Uncorrectable            : 1", 1)
    )
    assert [alert.kind for alert in detector.poll()] == [AlertKind.GPU_ECC_UNCORRECTABLE]


def test_gpus_that_are_left_keep_their_numbers() -> None:
    """The tool leaves out the one that it cannot open."""
    lost = "Unable to determine the device handle for GPU0: 0000:24:00.0: GPU is lost.\n"
    assert [(gpu.index, gpu.lost) for gpu in read(lost + real("g-4090-healthy"))] == [
        (0, True),
        (1, False),
        (2, False),
    ]


@pytest.mark.parametrize(
    "name", ["GPU1: 0000:91:00.0", "GPU 0000:91:00.0", "GPU0000:91:00.0", "GPU00000000:91:00.0"]
)
def test_a_gpu_that_cannot_be_opened_by_each_name(name: str) -> None:
    """With its number, or by its address, as newer drivers write it without a blank."""
    [gpu] = read(f"Unable to determine the device handle for {name}: Unknown Error\n")
    assert (gpu.index, gpu.pci, gpu.lost) == (1 if "1:" in name[:5] else -1, "0000:91:00", True)


def test_a_gpu_that_may_not_be_opened_is_not_lost() -> None:
    """A permission is no fault of the machine."""
    [gpu] = read("Unable to determine the device handle for GPU0: 0000:01:00.0: Insufficient Permissions\n")
    assert (gpu.error, gpu.lost) == ("Insufficient Permissions", False)


def test_the_library_is_asked_first(tmp_path: Path) -> None:
    """It answers in microseconds."""
    machine = Machine(tmp_path)
    machine.prints(TOOL, real("g-lost"))
    known = [GpuReading(index=0)]
    assert Smi(Library(known), Tool(TOOL, 5.0, str(machine.bin))).read() == known
    assert machine.calls(TOOL) == []


@pytest.mark.parametrize("text", [None, "", real("g-no-driver"), real("g-section-only")])
def test_without_tool_or_driver_nothing_is_tested(tmp_path: Path, text: str | None) -> None:
    """Neither healthy nor lost."""
    machine = of_local_driver(tmp_path)
    if text is not None:
        machine.prints(TOOL, text, status=9)
    detector = detector_of(machine, "gpu")
    assert detector.poll() == []
    assert detector.inspect() == []


@pytest.mark.parametrize("text", ["", real("g-4090-healthy").partition("GPU 00000000:21:00.0")[0]])
def test_a_tool_that_ends_early_reports_no_loss(tmp_path: Path, text: str) -> None:
    """No GPU, or one of the two it listed before, of eight that it counts."""
    machine = of_local_driver(tmp_path)
    detector = detector_of(machine, "gpu")
    machine.prints(TOOL, real("g-4090-healthy"))
    assert detector.poll() == []
    machine.prints(TOOL, text)
    assert detector.poll() == []


def test_a_driver_whose_files_were_replaced_has_lost_nothing(tmp_path: Path) -> None:
    """By an update of its package under a running job: noted when it lasts. A GPU that is lost later is seen."""
    machine = of_local_driver(tmp_path)
    detector = detector_of(machine, "gpu")
    machine.prints(TOOL, real("g-4090-healthy"))
    assert detector.poll() == []
    machine.prints(TOOL, real("v-smi-updated"), status=18)
    found = [alert for _ in range(4) for alert in detector.poll()]
    assert [(alert.kind, alert.evidence["check"]) for alert in found] == [(AlertKind.HOST_FAULT, "gpu_error")]
    machine.prints(TOOL, real("g-no-driver"), status=9)
    assert [alert.kind for alert in detector.poll()] == [AlertKind.GPU_LOST]


def test_a_driver_that_went_away_has_lost_its_gpus(tmp_path: Path) -> None:
    """The tool's message for it; where no GPU was seen before, the same message is no loss."""
    machine = of_local_driver(tmp_path)
    detector = detector_of(machine, "gpu")
    machine.prints(TOOL, real("g-4090-healthy"))
    assert detector.poll() == []
    machine.prints(TOOL, real("g-no-driver"), status=9)
    assert [alert.kind for alert in detector.poll()] == [AlertKind.GPU_LOST]


@pytest.mark.parametrize(
    ("status", "asked"),
    [
        ("    GPU Recovery Action                   : Reset", "GPU recovery action: Reset"),
        ("    GPU Recovery Action                   : GPU_RESET", "GPU recovery action: GPU_RESET"),
        ("    GPU Recovery Action                   : Reboot", "GPU recovery action: Reboot"),
        ("    GPU Recovery Action                   : Drain P2P", ""),
        ("    GPU Recovery Action                   : Drain and Reset", ""),
        ("    GPU Recovery Action                   : None", ""),
        ("    GPU Reset Status\n        Reset Required                    : Yes", "reset required"),
        ("    GPU Reset Status\n        Reset Required                    : No", ""),
        ("    GPU Reset Status\n        Reset Required                    : [N/A]", ""),
    ],
)
def test_a_gpu_that_waits_for_a_reset_is_lost(status: str, asked: str) -> None:
    """By the words of drivers before 565, and since."""
    [gpu] = read(f"GPU 00000000:18:00.0\n    Product Name                          : NVIDIA H200\n{status}\n")
    assert (gpu.error, gpu.lost) == (asked, bool(asked))
