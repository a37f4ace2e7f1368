"""Checks of one machine from outside torch: interfaces, the vendor's diagnostics, and what they leave behind."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import interfaces, machine_state, vendor
from holdfast.agent.interfaces import Interface
from holdfast.agent.machine_state import GpuState, MachineState


def test_transfer_through_an_interface_arrives() -> None:
    """Every interface that is up passes, with its speed."""
    findings = interfaces.check("m0", 10)
    assert findings
    assert all(finding.ok and finding.value and finding.value > 0 for finding in findings)
    assert [finding.machine for finding in findings] == ["m0"] * len(findings)


def test_interface_whose_address_is_gone_fails() -> None:
    """It names the interface, and is not proof by itself."""
    (finding,) = interfaces.check("m0", 1, [Interface("eth9", "192.0.2.1")])
    assert not finding.ok
    assert not finding.sure
    assert "eth9" in finding.detail


def test_damage_on_the_way_is_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte that changes underneath."""
    send = interfaces._send
    monkeypatch.setattr(interfaces, "_send", lambda sender, payload: send(sender, b"\x01" + payload[1:]))
    finding = interfaces.check("m0", 10)[0]
    assert not finding.ok
    assert finding.sure


async def test_without_the_vendors_tool_there_is_nothing_to_say() -> None:
    """Most machines have none."""
    assert await vendor.check("m0", 1.0, program="no-such-dcgmi") == []


def result(status: str, **more: Any) -> dict[str, Any]:
    return {"gpu_id": "0", "status": status, **more}


V3 = {"DCGM GPU Diagnostic": {"test_categories": [{"category": "Deployment", "tests": []}]}}


@pytest.mark.parametrize(
    ("results", "ok", "sure"),
    [
        ([result("Pass"), result("Skip")], True, False),
        ([result("Pass"), result("Fail", warnings="PCIe link degraded")], False, True),
        ([], False, False),
    ],
)
async def test_vendors_answer_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, results: list[Any], ok: bool, sure: bool
) -> None:
    """Through a program of that name; failed tests are sure, an empty answer is not."""
    told = json.loads(json.dumps(V3))
    told["DCGM GPU Diagnostic"]["test_categories"][0]["tests"] = [{"name": "PCIe", "results": results}]
    program(tmp_path, monkeypatch, f"cat <<'END'\n{json.dumps(told)}\nEND")
    (finding,) = await vendor.check("m0", 10.0)
    assert (finding.ok, finding.sure) == (ok, sure)
    assert ok or not results or "PCIe on GPU 0: PCIe link degraded" in finding.detail


@pytest.mark.parametrize(
    ("body", "said"), [("echo boom >&2; exit 3", "boom"), ("exec sleep 60", "longer than")]
)
async def test_vendors_tool_that_fails_accuses_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    """It ends with an error, or not at all."""
    program(tmp_path, monkeypatch, body)
    (finding,) = await vendor.check("m0", 0.5)
    assert not finding.ok
    assert not finding.sure
    assert said in finding.detail


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A ``dcgmi`` that does ``body``."""
    path = folder / "dcgmi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


class FakeSettings:
    """GPUs whose settings a diagnostic changes."""

    def __init__(self, now: MachineState, stuck: bool = False) -> None:
        self.now = now
        self.stuck = stuck
        self.restored: list[tuple[int, str]] = []

    def read(self) -> MachineState:
        return self.now

    def restore(self, index: int, name: str, before: GpuState) -> str:
        self.restored.append((index, name))
        return "no permission" if self.stuck else ""


BEFORE = MachineState(gpus=(GpuState(persistence=1, application_sm_mhz=1980), GpuState(persistence=1)))


def test_unchanged_machine_says_nothing() -> None:
    """The usual case."""
    assert machine_state.put_back("m0", FakeSettings(BEFORE), BEFORE) == []


@pytest.mark.parametrize("stuck", [False, True])
def test_lowered_clock_is_put_back_and_told(stuck: bool) -> None:
    """EUD was seen to lower the clocks; what cannot be put back fails the machine's check."""
    lowered = MachineState(gpus=(GpuState(persistence=1, application_sm_mhz=1200), GpuState(persistence=1)))
    settings = FakeSettings(lowered, stuck)
    (finding,) = machine_state.put_back("m0", settings, BEFORE)
    assert settings.restored == [(0, "application_sm_mhz")]
    assert finding.ok is not stuck
    assert "was 1980, the diagnosis left it at 1200" in finding.detail


def test_gpu_that_went_away_is_a_finding() -> None:
    """Nothing can put that back."""
    (finding,) = machine_state.put_back("m0", FakeSettings(MachineState(gpus=BEFORE.gpus[:1])), BEFORE)
    assert not finding.ok


def test_machine_without_gpus_has_no_state() -> None:
    """The real library, where there is no driver (and where there is one, it reads)."""
    assert machine_state.NvmlSettings().read() == machine_state.NvmlSettings().read()
