"""GPUs that a test sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.inspection import nvml_stub
from tests.agent.inspection.nvml_stub import StubGpus


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubGpus:
    """Two healthy GPUs below the real pynvml."""
    nvml_stub.load()
    stub = StubGpus(tmp_path / "gpus")
    monkeypatch.setenv(nvml_stub.ENV, str(stub.path))
    return stub


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A kernel log as a file, not there yet."""
    return tmp_path / "kernel.log"
