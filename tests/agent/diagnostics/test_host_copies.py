"""Copies to a device and back: a slow machine and one that damages bytes are named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from holdfast.agent.diagnostics import check_process, host_copies
from holdfast.agent.diagnostics.machine_checks import run_check
from holdfast.models.agent import Check, Diagnose
from holdfast.models.alert import Finding
from holdfast.policies.diagnose.verdicts import judge
from tests.agent.diagnostics.test_diagnostics import ScriptedForks

CPU = torch.device("cpu")
DELAY_S = 0.2
ROUNDS = 3


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few bytes, one thread, as in the check's processes: a copy within this host's memory takes microseconds."""
    monkeypatch.setattr(host_copies, "NBYTES", 1 << 16)
    monkeypatch.setattr(host_copies, "ROUNDS", ROUNDS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


async def measured(machine: str, processes: int = 1) -> list[Finding]:
    """Findings of real copies, as the machine's agent reports them; this host's other load is not under test."""
    forks = ScriptedForks(*(host_copies.copies(CPU) for _ in range(processes)))
    command = Diagnose(job="j", epoch=1, incarnation="i", check=Check.PCIE, processes=processes, timeout_s=30)
    found = await run_check(command, forks, machine=machine)
    return [finding.model_copy(update={"busy": 0.0}) for finding in found]


def underneath(monkeypatch: pytest.MonkeyPatch, harm: Callable[[torch.Tensor], None]) -> None:
    """Do ``harm`` to what each copy of a tensor makes."""
    right = torch.Tensor.copy_

    def copy(self: torch.Tensor, *args: Any, **more: Any) -> torch.Tensor:
        found = right(self, *args, **more)
        harm(found)
        return found

    monkeypatch.setattr(torch.Tensor, "copy_", copy)


async def test_a_machine_whose_copies_are_slow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among its equals, by the worst of its processes; nothing fails, and a crash is not explained by it."""
    good = [one for machine in ("m0", "m1", "m3") for one in await measured(machine, 2)]
    assert all(one.ok and one.unit == "MB/s" and one.repeats == ROUNDS for one in good)
    fine = await measured("m2")
    underneath(monkeypatch, lambda _: time.sleep(DELAY_S))
    slow = await measured("m2")
    # A factor of 5: other work of this host delays copies of microseconds.
    verdict = judge([*good, *fine, *slow], 5.0)
    assert verdict.suspects == ("m2",), [(one.machine, one.value) for one in verdict.findings]
    assert judge([*good, *fine, *slow]).suspects == ()


async def test_bytes_that_come_back_damaged_are_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other machine can be the cause."""

    def blank(made: torch.Tensor) -> None:
        made[:1024] = 0

    # Each damaged byte stays as it is, whatever it was: at most one in 256 was the same before.
    underneath(monkeypatch, blank)
    found = await measured("m1")
    assert found[0].sure
    assert "bytes came back damaged" in found[0].detail
    assert judge(found).suspects == ("m1",)


def test_it_is_one_of_the_checks() -> None:
    """By its name."""
    assert check_process.CHECKS[Check.PCIE] is host_copies.pcie
