"""Checks of one machine from outside torch: interfaces, the vendor's diagnostics, and what they leave behind."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.diagnostics import interfaces, machine_state, vendor
from holdfast.agent.diagnostics.machine_state import GpuState, GpuStates
from holdfast.policies.diagnose.verdicts import judge

RESULT = """
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : {device}
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      1130000          0.00               {rate}             0.370000
---------------------------------------------------------------------------------------
"""


def adapters(root: Path, **states: str) -> Path:
    """A sysfs with one port per adapter."""
    for device, state in states.items():
        port = root / "infiniband" / device / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(state + "\n")
        (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
    return root / "infiniband"


def perftest(root: Path, output: str, status: int = 0) -> str:
    """A tool like perftest's: the server waits for its client, and the client prints the result."""
    tool = root / "ib_write_bw"
    tool.write_text(
        '#!/bin/sh\nfor last; do :; done\n[ "$last" = 127.0.0.1 ] || exec sleep 60\n'
        f'device="$2"\ncat <<EOF\n{output}\nEOF\nexit {status}\n'
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return str(tool)


async def test_adapters_are_measured_through_themselves(tmp_path: Path) -> None:
    """Each active one, with its bandwidth; ports that are down are left to inspection."""
    sysfs = adapters(tmp_path, mlx5_0="4: ACTIVE", mlx5_1="1: DOWN", mlx5_2="4: ACTIVE")
    tool = perftest(tmp_path, RESULT.format(device="$device", rate="193.99"))
    found = await interfaces.check("m0", 30, program=tool, sysfs=sysfs)
    assert [(one.kind.partition(",")[0], one.value, one.unit) for one in found] == [
        ("mlx5_0", 193.99, "Gb/s"),
        ("mlx5_2", 193.99, "Gb/s"),
    ]
    assert all(one.ok and one.repeats == interfaces.ROUNDS for one in found)


async def test_the_port_that_is_active_is_tested(tmp_path: Path) -> None:
    """Not the tool's default, which may be unplugged; and both of an adapter where both are active."""
    sysfs = adapters(tmp_path, mlx5_0="1: DOWN", mlx5_1="4: ACTIVE")
    for device in ("mlx5_0", "mlx5_1"):
        second = sysfs / device / "ports" / "2"
        second.mkdir()
        (second / "state").write_text("4: ACTIVE\n")
        (second / "rate").write_text("200 Gb/sec (4X HDR)\n")
    rate = '$([ "$3 $4" = "-i 2" ] && echo 97 || echo 194)'
    tool = perftest(tmp_path, RESULT.format(device="$device", rate=rate))
    found = await interfaces.check("m0", 30, program=tool, sysfs=sysfs)
    assert [(one.kind.partition(",")[0], one.value) for one in found] == [
        ("mlx5_0/2", 97.0),
        ("mlx5_1", 194.0),
        ("mlx5_1/2", 97.0),
    ]


@pytest.mark.parametrize(
    ("count", "timeout_s", "turns"),
    [
        (1, 29.0, [1]),
        (4, 29.0, [1, 1, 1, 1]),
        (8, 29.0, [2, 2, 2, 2]),
        (10, 29.0, [3, 3, 3, 1]),
        (8, 1.0, [8]),
    ],
)
def test_every_adapter_has_time_for_all_its_rounds(count: int, timeout_s: float, turns: list[int]) -> None:
    """Eight adapters one after the other had two rounds each, and only what is five times slower counts then."""
    ports = [interfaces.ActivePort(f"mlx5_{number}", "1", "400 Gb/sec (4X NDR)") for number in range(count)]
    found = interfaces.in_turns(ports, timeout_s)
    assert [len(turn) for turn in found] == turns
    assert [port for turn in found for port in turn] == ports


async def test_a_slow_adapter_is_named_among_its_equals(tmp_path: Path) -> None:
    """By its value, as any other check."""
    sysfs = adapters(tmp_path, mlx5_0="4: ACTIVE")
    rates = {"m0": "193.9", "m1": "193.8", "m2": "97.0", "m3": "193.9"}
    found = [
        one
        for machine, rate in rates.items()
        for one in await interfaces.check(
            machine, 30, program=perftest(tmp_path, RESULT.format(device="", rate=rate)), sysfs=sysfs
        )
    ]
    assert judge(found, 1.5).suspects == ("m2",)
    assert judge(found).suspects == ()


@pytest.mark.parametrize("broken", ["no adapter", "no tool", "fails", "says nothing", "hangs"])
async def test_what_cannot_be_tested_accuses_no_machine(tmp_path: Path, broken: str) -> None:
    """Traffic to a host's own address never leaves it: it is no evidence about an interface."""
    sysfs = adapters(tmp_path, **({} if broken == "no adapter" else {"mlx5_0": "4: ACTIVE"}))
    tool = "no-such-tool"
    if broken == "fails":
        tool = perftest(tmp_path, "Couldn't allocate MR", 1)
    elif broken == "says nothing":
        tool = perftest(tmp_path, "")
    elif broken == "hangs":
        tool = perftest(tmp_path, "$(sleep 60)")
    (found,) = await interfaces.check("m0", 0.6, program=tool, sysfs=sysfs)
    assert found.ok
    assert found.value is None
    assert found.detail.startswith("not tested: ")


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
    answer = json.loads(json.dumps(V3))
    answer["DCGM GPU Diagnostic"]["test_categories"][0]["tests"] = [{"name": "PCIe", "results": results}]
    program(tmp_path, monkeypatch, f"cat <<'END'\n{json.dumps(answer)}\nEND")
    (finding,) = await vendor.check("m0", 60.0)
    assert (finding.ok, finding.sure) == (ok, sure)
    assert ok or not results or "PCIe on GPU 0: PCIe link degraded" in finding.detail


@pytest.mark.parametrize(
    ("body", "reason", "limit_s"),
    [("echo boom >&2; exit 3", "boom", 60.0), ("exec sleep 60", "longer than", 0.5)],
)
async def test_vendors_tool_that_fails_accuses_no_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str, limit_s: float
) -> None:
    """It ends with an error, or not at all."""
    program(tmp_path, monkeypatch, body)
    (finding,) = await vendor.check("m0", limit_s)
    assert not finding.ok
    assert not finding.sure
    assert reason in finding.detail


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A ``dcgmi`` that does ``body``."""
    path = folder / "dcgmi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


class FakeSettings:
    """GPUs whose settings a diagnostic changes."""

    def __init__(self, now: GpuStates, stuck: bool = False) -> None:
        self.now = now
        self.stuck = stuck
        self.restored: list[tuple[int, str]] = []

    def read(self) -> GpuStates:
        return self.now

    def restore(self, index: int, name: str, before: GpuState) -> str:
        self.restored.append((index, name))
        return "no permission" if self.stuck else ""


BEFORE = GpuStates(gpus=(GpuState(persistence=1, application_sm_mhz=1980), GpuState(persistence=1)))


def test_unchanged_machine_says_nothing() -> None:
    """The usual case."""
    assert machine_state.put_back("m0", FakeSettings(BEFORE), BEFORE) == []


@pytest.mark.parametrize("stuck", [False, True])
def test_lowered_clock_is_put_back_and_reported(stuck: bool) -> None:
    """EUD was seen to lower the clocks; what cannot be put back fails the machine's check."""
    lowered = GpuStates(gpus=(GpuState(persistence=1, application_sm_mhz=1200), GpuState(persistence=1)))
    settings = FakeSettings(lowered, stuck)
    (finding,) = machine_state.put_back("m0", settings, BEFORE)
    assert settings.restored == [(0, "application_sm_mhz")]
    assert finding.ok is not stuck
    assert "was 1980, the diagnosis left it at 1200" in finding.detail


def test_gpu_that_went_away_is_a_finding() -> None:
    """Nothing can put that back."""
    (finding,) = machine_state.put_back("m0", FakeSettings(GpuStates(gpus=BEFORE.gpus[:1])), BEFORE)
    assert not finding.ok


def test_machine_without_gpus_has_no_state() -> None:
    """The real library, where there is no driver (and where there is one, it reads)."""
    assert machine_state.NvmlSettings().read() == machine_state.NvmlSettings().read()
