"""The GPUs that take part in a check."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from holdfast.agent.diagnostics import (
    devices,
    machine_checks,
    machine_state,
)
from holdfast.agent.diagnostics.check_part import CheckOutcome, CheckPart
from holdfast.agent.diagnostics.machine_checks import run_check
from holdfast.agent.diagnostics.warm_checks import Bench
from tests.agent.diagnostics.scripted_checks import GOOD, ScriptedForks, command, pair


@pytest.mark.parametrize(
    ("check", "whole", "ranks"),
    [("matmul", True, 8), ("all_to_all", True, 8), ("disk", True, 1), ("matmul", False, 1)],
)
async def test_all_gpus_of_a_machine_that_serves_no_job_take_part(
    check: str, whole: bool, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no ranks, so that one process is asked for. Beside a job some GPUs are a role's replicas'."""
    monkeypatch.setattr(machine_checks, "visible_gpus", lambda: 8)
    forks = ScriptedForks(*[GOOD] * ranks)
    await run_check(command(check, processes=1, whole=whole), forks, machine="m1")
    assert [(part.rank, part.size) for part in forks.parts] == [(rank, ranks) for rank in range(ranks)]


class EightGpus:
    """NVIDIA's library on a machine with eight; number 3 is full."""

    NVMLError = RuntimeError

    @staticmethod
    def nvmlDeviceGetCount() -> int:  # noqa: N802  (its name)
        return 8

    @staticmethod
    def nvmlDeviceGetHandleByIndex(index: int) -> int:  # noqa: N802
        return index

    @staticmethod
    def nvmlDeviceGetMemoryInfo(gpu: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(free=(1 if gpu == 3 else 40) << 30)


def show_gpus(shown: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the agent see those that ``CUDA_VISIBLE_DEVICES`` names; None: it is not set."""
    monkeypatch.setattr(machine_state, "_nvml", lambda: EightGpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)


@pytest.mark.parametrize(
    ("shown", "seen"),
    [(None, 8), ("", 0), ("3", 1), ("0,1,2", 3), ("-1", 0), ("NoDevFiles", 0), ("GPU-3f, 1,x,2", 2)],
)
def test_gpus_that_are_hidden_take_no_part(
    shown: str | None, seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process for a GPU that torch does not see would test the processor instead."""
    show_gpus(shown, monkeypatch)
    assert machine_state.visible_gpus() == seen


@pytest.mark.parametrize(("check", "forked"), [("matmul", 0), ("all_to_all", 0), ("disk", 1)])
async def test_gpus_that_a_job_fills_are_not_tested_beside_it(
    check: str, forked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check could fail for lack of memory, and so could the job. The disk is tested all the same."""
    monkeypatch.setattr(machine_checks, "without_room", lambda ranks: f"GPU {max(ranks)} has 1.2 GiB")
    forks = ScriptedForks(GOOD)
    found = await run_check(command(check, processes=2), forks, machine="m1", beside=True)
    assert all(finding.ok for finding in found)
    assert len(forks.parts) == forked
    assert forked or [finding.detail for finding in found] == ["not tested: GPU 1 has 1.2 GiB, beside a job"]


async def test_a_driver_that_hangs_holds_up_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs with a GPU that is lost; what it does not answer is not known."""
    go = threading.Event()

    def hang(*_: object) -> None:
        go.wait(60)

    monkeypatch.setattr(machine_checks, "DRIVER_S", 0.05)
    monkeypatch.setattr(machine_checks.NvmlSettings, "read", hang)
    monkeypatch.setattr(machine_checks, "visible_gpus", hang)
    forks = ScriptedForks(GOOD)
    try:
        found = await run_check(command("matmul", processes=1, whole=True), forks, machine="m1")
    finally:
        go.set()
    assert [finding.ok for finding in found] == [True]


async def test_what_the_driver_took_is_not_waited_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes hang with the driver: the caller would be gone when the findings are there."""
    given: list[float] = []

    async def run(
        parts: list[CheckPart], _target: object, _bench: Bench, timeout_s: float
    ) -> dict[int, CheckOutcome]:
        given.append(timeout_s)
        return {part.rank: GOOD for part in parts}

    async def silent(_ask: object, otherwise: object) -> object:
        await asyncio.sleep(0.05)
        return otherwise

    monkeypatch.setattr(machine_checks, "_of_driver", silent)
    monkeypatch.setattr(machine_checks, "_run", run)
    await run_check(command("matmul", processes=1, whole=True), ScriptedForks(), machine="m1")
    assert given[0] <= 90.0 - 0.09


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (None, ""),
        ("2,3", "GPU 3 has 1.0 GiB of memory free, and a check may take 4 GiB"),
        ("2", ""),
        ("", ""),
        ("GPU-3f,GPU-4a", ""),
    ],
)
def test_room_on_the_gpus_that_a_check_takes(
    shown: str | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two that are visible; another one is full."""
    show_gpus(shown, monkeypatch)
    assert machine_state.without_room(range(2)) == why


@pytest.mark.torch
@pytest.mark.parametrize(
    ("seen", "why", "fails"),
    [
        (8, "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", True),
        (8, "The NVIDIA driver on your system is too old (found version 11040)", False),
        (0, "No CUDA GPUs are available", False),
        (8, "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, ...", False),
    ],
)
def test_gpus_that_torch_cannot_use_are_not_tested_by_the_processor(
    seen: int, why: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver shows them, and every rank would fail on them."""
    torch = pytest.importorskip("torch")

    def init() -> None:
        raise RuntimeError(why)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(machine_state, "visible_gpus", lambda: seen)
    if fails:
        with pytest.raises(RuntimeError, match="Error 802"):
            devices.gpus()
    else:
        assert devices.gpus() == 0


@pytest.mark.parametrize(("whole", "gpus"), [(False, 4), (True, 0)])
async def test_as_many_gpus_of_a_pair_take_part_as_the_job_uses(whole: bool, gpus: int) -> None:
    """All (0) of a machine that serves no job."""
    forks = ScriptedForks(GOOD)
    await run_check(pair(0, "m2", processes=4, whole=whole), forks, machine="m1")
    assert [(part.size, part.gpus) for part in forks.parts] == [(2, gpus)]
