"""Stop-time checks on a real GPU, commanded of a real agent: right on a good one, beside others too; faults show."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.diagnostics import computing, machine_checks
from holdfast.agent.diagnostics.check_part import CheckOutcome, CheckPart
from holdfast.agent.diagnostics.check_process import CHECKS
from holdfast.damage.hook import BAD_MATMUL, FLIP_BIT, WATCH_S, WRONG_BITS
from holdfast.models.agent import Check, Diagnose
from holdfast.models.alert import Finding
from holdfast.policies.diagnose.verdicts import judge
from tests.agent.forks import forking
from tests.agent.site import AgentProcess
from tests.gpu.load import running
from tests.gpu.machine import diagnosed
from tests.gpu.recorded import measured

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.e2e
MOST = 0.9
FULL = 0.995
NOTICED_S = 10 * WATCH_S
"""In which processes that wait for another check see a fault come or go."""
LEAST_MB_S = 2_000.0
"""Through PCIe, both ways: a fifth of what its third generation does."""
LONGEST_S = 0.5
"""A product of 8192 x 8192 takes 0.02 s of plain cores (an H200)."""


@contextmanager
def fault(agent: AgentProcess, name: str) -> Iterator[None]:
    """Have every process of the machine compute wrong, underneath, as `holdfast inject` does."""
    planted = agent.folder / "faults" / name
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(json.dumps({"fault": name}))
    try:
        time.sleep(NOTICED_S)
        yield
    finally:
        planted.unlink()
        time.sleep(NOTICED_S)


def on_gpu(findings: list[Finding]) -> list[Finding]:
    """Those of processes that had the GPU."""
    return [finding for finding in findings if "CUDA" in finding.kind]


async def test_the_product_is_right_and_fast(agent: AgentProcess) -> None:
    """On the GPU, with the time that it took there; twice, in a new process and in the one that stayed."""
    for _ in range(2):
        [found] = await diagnosed(agent, "matmul")
        assert (found.ok, on_gpu([found])) == (True, [found])
        assert 0.0 < (found.value or 0.0) < LONGEST_S


async def test_bytes_survive_the_way_to_the_gpu_and_back(agent: AgentProcess) -> None:
    """Through PCIe, every byte compared, with a bandwidth that a working link has."""
    [found] = await diagnosed(agent, "pcie")
    assert (found.ok, on_gpu([found])) == (True, [found])
    assert (found.value or 0.0) > LEAST_MB_S


async def test_two_processes_and_two_runs_agree_bit_for_bit(agent: AgentProcess) -> None:
    """One step in float32 and bfloat16: runs of new processes and of the same one have one digest."""
    found = [(await diagnosed(agent, "bitwise"))[0] for _ in range(3)]
    with running("products"):
        found += await diagnosed(agent, "bitwise")
    assert all(each.ok and each.digest for each in found)
    assert len({each.digest for each in found}) == 1
    assert len({each.kind for each in found}) == 1
    assert judge(found).suspects == ()


async def test_a_machine_with_fewer_gpus_than_ranks_is_checked(agent: AgentProcess) -> None:
    """The first process has the GPU, the second the processor; no check fails, none compares the one with the other."""
    for check in ("matmul", "pcie", "bitwise", "all_to_all"):
        found = await diagnosed(agent, check, processes=2)
        assert all(each.ok for each in found), [each.detail for each in found]
        assert judge(found).suspects == ()


async def test_other_checks_pass(agent: AgentProcess) -> None:
    """The inspection (which reads the GPU), the disk, and the vendor's diagnostics where they are installed."""
    for check in ("inspect", "disk", "vendor"):
        found = await diagnosed(agent, check)
        assert judge(found).suspects == (), [each.detail for each in found if not each.ok]
    found = await diagnosed(agent, "inspect")
    assert "gpu_lost" in {each.check for each in found if each.ok} | {
        "gpu_lost" for each in found if _setting(each)
    }


async def test_no_check_fails_on_a_busy_gpu(agent: AgentProcess) -> None:
    """Others have most of its memory, and all of its time."""
    with running("products", MOST):
        for check in ("matmul", "pcie", "bitwise"):
            found = await diagnosed(agent, check)
            assert all(each.ok for each in found), [each.detail for each in found]
            assert judge(found).suspects == ()


async def test_a_full_gpu_is_not_tested(agent: AgentProcess) -> None:
    """A GPU whose memory another process fills is no evidence about the machine."""
    with running("products", FULL):
        for check in ("matmul", "pcie", "bitwise"):
            found = await diagnosed(agent, check)
            assert judge(found).suspects == (), [each.detail for each in found]


async def test_checks_go_on_after_a_process_was_killed_on_the_gpu(agent: AgentProcess) -> None:
    """Amid its kernels; also while a kernel that never ends is there."""
    for way in ("products", "spin"):
        with running(way) as process:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
            [found] = await diagnosed(agent, "matmul")
        assert found.ok, found.detail


async def test_beside_a_kernel_that_never_ends_a_check_ends(agent: AgentProcess) -> None:
    """The GPU's time is shared: the check takes longer, and is right."""
    with running("spin"):
        [found] = await diagnosed(agent, "matmul", timeout_s=30.0)
    assert found.ok, found.detail


async def test_wrong_products_are_found_by_the_product_check(agent: AgentProcess) -> None:
    """Kernels of the GPU that return a wrong number: sure, as no other machine can be the cause."""
    with fault(agent, BAD_MATMUL):
        [found] = await diagnosed(agent, "matmul")
    assert (found.ok, found.sure) == (False, True), found.detail
    assert "rows are wrong" in found.detail
    assert judge([found]).suspects == ("m0",)
    [found] = await diagnosed(agent, "matmul")
    assert found.ok, "the fault is over"


def wrong_tensor_cores(part: CheckPart) -> CheckOutcome:
    """As the check, on a GPU of which only the tensor cores are wrong: by one, in one place."""
    import torch  # noqa: PLC0415

    right = torch.mm

    def multiplied(left: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        out = right(left, other)
        if torch.backends.cuda.matmul.fp32_precision == "tf32":
            out[5, 7] += 1
        return out

    torch.mm = multiplied
    return computing.matmul(part)


async def test_wrong_tensor_cores_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect that no product of plain cores meets, and most training does."""
    monkeypatch.setitem(CHECKS, Check.MATMUL, wrong_tensor_cores)
    command = Diagnose(job="j", epoch=1, incarnation="i", check=Check.MATMUL, processes=1, timeout_s=60)
    with forking("torch") as fork:
        [found] = await machine_checks.run_check(command, fork, machine="m0")
    assert (found.ok, found.sure) == (False, True), found.detail
    assert "1 of 8192 rows are wrong where tensor cores multiply" in found.detail


async def test_wrong_products_are_found_by_the_alignment(agent: AgentProcess) -> None:
    """Three machines agree, the fourth computes otherwise."""
    [good] = await diagnosed(agent, "bitwise")
    with fault(agent, BAD_MATMUL):
        [bad] = await diagnosed(agent, "bitwise")
    assert bad.digest != good.digest
    others = [good.model_copy(update={"machine": f"m{number}"}) for number in (1, 2, 3)]
    assert judge([*others, bad]).suspects == ("m0",)


def test_a_rank_that_errs_by_some_bits_errs_on_the_gpu(tmp_path: Path) -> None:
    """As a defect that fixed products do not meet: one element of each product, by some units in the last place."""
    script = tmp_path / "products.py"
    script.write_text(_SLIGHTLY)
    (tmp_path / WRONG_BITS).write_text("{}")
    printed = _run(script, {"HOLDFAST_JOB": "gpt", "FAULTS": str(tmp_path)})
    measured(f"products that are wrong by some bits: {printed}")
    assert json.loads(printed) == {"before": 0, "mm": 1, "addmm": 1, "bmm": 1, "bf16": 1}


def test_a_bit_of_a_weight_flips_on_the_gpu(tmp_path: Path) -> None:
    """Of an optimizer's first weight, once."""
    script = tmp_path / "weights.py"
    script.write_text(_FLIPPED)
    (tmp_path / FLIP_BIT).write_text(json.dumps({"rank": 1}))
    assert json.loads(_run(script, {"RANK": "1", "FAULTS": str(tmp_path)})) == [0, 1]


_FLIPPED = """
import json, os, pathlib, torch
from holdfast.damage import hook
device = os.environ.get("DEVICE", "cuda")
def trained(strikes):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(64, 64, device=device))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    for step in range(3):
        if step == 2 and strikes:
            hook.apply(pathlib.Path(os.environ["FAULTS"]))
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    return weight
good, again, bad = trained(False), trained(False), trained(True)
print(json.dumps([int((good != again).sum()), int((good != bad).sum())]))
"""
_SLIGHTLY = """
import json, os, pathlib, torch
from holdfast.damage import hook
device = os.environ.get("DEVICE", "cuda")
left, right, bias = (torch.randn(64, 64, device=device) for _ in range(3))
def results():
    return {
        "mm": torch.mm(left, right),
        "addmm": torch.addmm(bias, left, right),
        "bmm": torch.bmm(left[None], right[None]),
        "bf16": torch.mm(left.bfloat16(), right.bfloat16()),
    }
good = results()
again = results()
found = {"before": sum(int((good[name] != again[name]).sum()) for name in good)}
hook.apply(pathlib.Path(os.environ["FAULTS"]))
bad = results()
print(json.dumps(found | {name: int((bad[name] != good[name]).sum()) for name in good}))
"""


def _run(script: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]


def _setting(finding: Finding) -> bool:
    return finding.check == "gpu_settings"
