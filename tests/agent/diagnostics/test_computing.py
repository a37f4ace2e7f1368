"""Fixed computations in fresh processes: right and equal on a good machine, caught on a bad one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from holdfast.agent.diagnostics import alignment, computing
from holdfast.agent.diagnostics.check_part import CheckOutcome, CheckPart
from holdfast.agent.diagnostics.check_process import CHECKS
from holdfast.agent.diagnostics.machine_checks import ForkFn, run_check
from holdfast.models.agent import Check, Diagnose
from holdfast.models.alert import Finding
from holdfast.policies.diagnose.verdicts import judge
from tests.agent.forks import forking


def damaged_matmul(part: CheckPart) -> CheckOutcome:
    """As the check, in a process whose products are damaged underneath."""
    from holdfast.damage import products  # noqa: PLC0415

    products.set_always(True)
    return computing.matmul(part)


def damaged_bitwise(part: CheckPart) -> CheckOutcome:
    """As the check, in a process whose products are damaged underneath."""
    from holdfast.damage import products  # noqa: PLC0415

    products.set_always(True)
    return alignment.bitwise(part)


@pytest.fixture(scope="module")
def fork() -> Iterator[ForkFn]:
    """A fork server with torch loaded."""
    with forking("torch", "torch.nn", "holdfast.agent.diagnostics.alignment") as start:
        yield start


async def run(check: Check, fork: ForkFn, machine: str, processes: int = 2) -> list[Finding]:
    """One check."""
    command = Diagnose(job="j", epoch=1, incarnation="i", check=check, processes=processes, timeout_s=60)
    return await run_check(command, fork, machine=machine)


def kinds_of_nodes(result: torch.Tensor) -> set[str]:
    """Names of all functions that a tensor was computed by."""
    found: set[Any] = set()
    todo: list[Any] = [result.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in found:
            found.add(node)
            todo += [each for each, _ in node.next_functions]
    return {type(node).__name__ for node in found}


def test_on_gpus_attention_has_a_fixed_order_of_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused kernels' backward passes have none there, and a digest of their results accused any machine."""
    used: list[str] = []
    plain = alignment._plain_attention

    def noted() -> AbstractContextManager[None]:
        used.append("plain")
        return plain()

    monkeypatch.setattr(alignment, "_plain_attention", noted)
    model = alignment._Model(torch.device("cpu"))
    given = model.embed(0)
    usual = model.blocks(given)
    assert not used
    model._device = torch.device("cuda")  # whose tensors stay where they are
    computed = model.blocks(given)
    assert used == ["plain"]
    assert not [name for name in kinds_of_nodes(computed) if name.startswith("ScaledDotProduct")]
    assert torch.allclose(computed, usual, atol=1e-5)


async def test_product_is_right_on_a_good_machine(fork: ForkFn) -> None:
    """Exact, with its cost in processor seconds and what it ran on."""
    findings = await run(Check.MATMUL, fork, "m0")
    assert [finding.ok for finding in findings] == [True, True]
    assert all(0 < (finding.value or 0) < 10 for finding in findings)
    assert all("torch" in finding.kind for finding in findings)


def full(part: CheckPart) -> CheckOutcome:
    """As the check, on a GPU of which another process has the memory."""
    message = "CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 79.11 GiB"

    def failing(_: torch.device) -> CheckOutcome:
        raise torch.OutOfMemoryError(message)

    return computing.compute_on(part, failing)


async def test_a_full_gpu_is_not_tested(fork: ForkFn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes use its memory: that is no evidence about the machine."""
    monkeypatch.setitem(CHECKS, Check.MATMUL, full)
    findings = await run(Check.MATMUL, fork, "m0", processes=1)
    assert findings[0].detail.startswith(
        "process 0: not tested: other processes have the GPU's memory: CUDA out"
    )
    assert (findings[0].ok, judge(findings).suspects) == (True, ())


async def test_wrong_product_is_sure(fork: ForkFn, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other machine can be the cause."""
    monkeypatch.setitem(CHECKS, Check.MATMUL, damaged_matmul)
    findings = await run(Check.MATMUL, fork, "m1", processes=1)
    assert [(finding.ok, finding.sure) for finding in findings] == [(False, True)]
    assert "rows are wrong" in findings[0].detail
    assert judge(findings).suspects == ("m1",)


async def test_bitwise_alignment_names_the_machine_that_computes_otherwise(
    fork: ForkFn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines of the same kind agree bit for bit, also between processes; the damaged one does not."""
    good = [*await run(Check.BITWISE, fork, "m0"), *await run(Check.BITWISE, fork, "m2")]
    digests: dict[str, set[str]] = {}
    for finding in good:
        digests.setdefault(finding.kind, set()).add(finding.digest)
    assert len(digests) == 3, "alone, and each process's part of what both did together"
    assert all(len(values) == 1 and values != {""} for values in digests.values())
    assert judge(good).suspects == ()
    monkeypatch.setitem(CHECKS, Check.BITWISE, damaged_bitwise)
    bad = await run(Check.BITWISE, fork, "m1")
    assert judge([*good, *bad]).suspects == ("m1",)


def wrong_together(part: CheckPart) -> CheckOutcome:
    """As the check, on a machine whose sums over processes are off by one bit: alone it computes right."""
    import torch.distributed as dist  # noqa: PLC0415

    right = dist.all_reduce

    def wrong(tensor: torch.Tensor) -> None:
        right(tensor)
        tensor.view(-1).view(torch.int32)[0] ^= 1

    dist.all_reduce = wrong
    return alignment.bitwise(part)


async def test_what_only_several_ranks_get_wrong_is_found(
    fork: ForkFn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data, tensor and pipeline parallel over the processes of each machine; each rank is compared with its equals."""
    good = [finding for machine in ("m0", "m1") for finding in await run(Check.BITWISE, fork, machine)]
    monkeypatch.setitem(CHECKS, Check.BITWISE, wrong_together)
    bad = await run(Check.BITWISE, fork, "m2")
    assert len({finding.digest for finding in [*good, *bad] if "together" not in finding.kind}) == 1
    assert judge([*good, *bad]).suspects == ("m2",)
