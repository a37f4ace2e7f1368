"""The playbook that lives outside the package: on the scripted cluster, and what it does on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2] / "examples" / "playbooks"


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(REPOSITORY))
    from hot_gpus import gpus as module  # noqa: PLC0415

    yield module
    for name in [name for name in sys.modules if name.startswith("hot_gpus")]:
        del sys.modules[name]


def test_its_own_tests_pass() -> None:
    """From its own repository, as its authors run them."""
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 passed" in done.stdout


class FakeNvml:
    """Two GPUs; the second is held down by heat, and remembers its orders."""

    nvmlClocksThrottleReasonHwThermalSlowdown = 0x40  # noqa: N815  (the library's own name)
    nvmlClocksThrottleReasonSwThermalSlowdown = 0x20  # noqa: N815

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def nvmlInit(self) -> None:  # noqa: N802
        return

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return 0x41 if handle else 0x1

    def nvmlDeviceSetGpuLockedClocks(self, handle: int, least: int, most: int) -> None:  # noqa: N802
        self.calls.append((handle, least, most))

    def nvmlDeviceResetGpuLockedClocks(self, handle: int) -> None:  # noqa: N802
        self.calls.append((handle, "reset"))


def test_commands_reach_the_driver(gpus: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the names that pynvml has."""
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
    assert gpus.gpu_heat("m1", tmp_path, {}) == {"throttling": ["GPU 1"]}
    gpus.lock_clocks("m1", tmp_path, {"mhz": 1200})
    gpus.lock_clocks("m1", tmp_path, {})
    assert nvml.calls == [(0, 0, 1200), (1, 0, 1200), (0, "reset"), (1, "reset")]


def test_the_names_are_those_of_the_real_library() -> None:
    """The control of the fake."""
    import pynvml  # noqa: PLC0415

    assert [name for name in vars(FakeNvml) if name.startswith("nvml") and not hasattr(pynvml, name)] == []


def test_simulated_gpus_cool_down_when_clocks_are_lowered(
    gpus: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For trying it on a machine without any."""
    monkeypatch.setenv(gpus.SIMULATED, "gpu.json")
    path = tmp_path / "machines" / "m1" / "gpu.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"hot_above_mhz": 1500, "mhz": 1980}))
    assert gpus.gpu_heat("m1", tmp_path, {}) == {"throttling": ["GPU 0"]}
    gpus.lock_clocks("m1", tmp_path, {"mhz": 1200})
    assert gpus.gpu_heat("m1", tmp_path, {}) == {"throttling": []}
    gpus.lock_clocks("m1", tmp_path, {})
    assert gpus.gpu_heat("m1", tmp_path, {}) == {"throttling": ["GPU 0"]}
