"""The computation of a stop-time check's processes: a fixed matrix product
(:mod:`holdfast.agent.diagnostics.alignment` has more).

Torch is imported inside the functions, as in :mod:`holdfast.agent.diagnostics.check_process`. Each process takes one
GPU, or one core when there are no GPUs.
"""

from __future__ import annotations

import math
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.agent.diagnostics import devices
from holdfast.agent.diagnostics.check_part import CheckOutcome, CheckPart

if TYPE_CHECKING:
    import torch

ROUNDS = 5
CPU_SIZE, GPU_SIZE = 512, 8192
SEED = 20
_FULL = re.compile(
    r"CUDA out of memory|(?:CUDA|HIP) error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|HIP out of memory"
)


def matmul(part: CheckPart) -> CheckOutcome:
    """Check and time a product of integer matrices, exact in every format and order of summation."""
    return compute_on(part, _matmul)


def compute_on(part: CheckPart, compute: Callable[[torch.device], CheckOutcome]) -> CheckOutcome:
    """Return what ``compute`` finds on the device of this process.

    A GPU whose memory others have taken is not tested, as that is no fault of it.
    """
    try:
        return compute(_device(part))
    except RuntimeError as error:
        if not _FULL.search(str(error)):
            raise
        first = str(error).partition("\n")[0][:300]
        return CheckOutcome(untested=f"other processes have the GPU's memory: {first}")


def _device(part: CheckPart) -> torch.device:
    # cuBLAS sums in a fixed order only with this, and reads it when it is loaded.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    return devices.take_gpu(part.rank) if part.rank < devices.gpus() else torch.device("cpu")


def kind_of(device: torch.device) -> str:
    """Return hardware and library: only machines that are equal here must agree bit for bit."""
    import torch  # noqa: PLC0415

    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    # The processor's features decide which kernels run.
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def _matmul(device: torch.device) -> CheckOutcome:
    """Do Freivalds' check: (A B) x equals A (B x), which takes another path through the hardware.

    All numbers are integers small enough that float32 sums of them are exact in any order, and that the shorter formats
    of a GPU's tensor cores hold the factors: these multiply as well. What is measured are the plain cores.
    """
    import torch  # noqa: PLC0415

    size = GPU_SIZE if device.type == "cuda" else CPU_SIZE
    made = torch.Generator().manual_seed(SEED)
    left, right = (
        # Drawn as bytes: as int64 the draws of a GPU's matrices take the processor more than twice as long.
        torch.randint(-8, 9, (size, size), generator=made, dtype=torch.int8).to(device).float()
        for _ in range(2)
    )
    vector = torch.randint(-8, 9, (size,), generator=made).double().to(device)
    expected = torch.mv(left.double(), torch.mv(right.double(), vector))
    seconds, wrong = math.inf, 0
    for _ in range(ROUNDS):
        product, took = _timed(lambda: torch.mm(left, right), device)
        seconds = min(seconds, took)
        wrong = max(wrong, int((torch.mv(product.double(), vector) != expected).sum()))
    by_tensor_cores = 0
    if device.type == "cuda":
        with _tensor_cores():
            product = torch.mm(left, right)
        by_tensor_cores = int((torch.mv(product.double(), vector) != expected).sum())
    return CheckOutcome(
        value=seconds,
        unit="s",
        repeats=ROUNDS,
        host=device.type != "cuda",
        kind=kind_of(device),
        wrong=_in_words(wrong, by_tensor_cores, size),
    )


def _in_words(wrong: int, by_tensor_cores: int, size: int) -> str:
    """Return the errors of both kinds of cores; empty: there are none."""
    if wrong:
        return f"{wrong} of {size} rows are wrong"
    return (
        f"{by_tensor_cores} of {size} rows are wrong where tensor cores multiply" if by_tensor_cores else ""
    )


@contextmanager
def _tensor_cores() -> Iterator[None]:
    """Have products of float32 made by tensor cores, where the GPU has them, in TF32."""
    import torch  # noqa: PLC0415

    products: Any = torch.backends.cuda.matmul
    # Torch before 2.9, of an image of its own, has the latter.
    name, value = ("fp32_precision", "tf32") if hasattr(products, "fp32_precision") else ("allow_tf32", True)
    before = getattr(products, name)
    setattr(products, name, value)
    try:
        yield
    finally:
        setattr(products, name, before)


def _timed(compute: Callable[[], torch.Tensor], device: torch.device) -> tuple[torch.Tensor, float]:
    """Return the result and its cost in seconds: of the GPU, or of the processor's time (others may use it as well)."""
    import torch  # noqa: PLC0415

    if device.type != "cuda":
        started = time.thread_time()
        result = compute()
        return result, time.thread_time() - started
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begun.record()
    result = compute()
    ended.record()
    torch.cuda.synchronize(device)
    return result, float(begun.elapsed_time(ended)) / 1e3
