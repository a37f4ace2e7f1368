"""Processes that use the GPU in a given way until they are killed: ``python -m tests.gpu.load WAY SHARE``.

Each prints ``ready`` once it does. They end by themselves after two minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.e2e.waiting import wait_for

LASTS_S = 120.0
READY_S = 60.0
SPIN = 'extern "C" __global__ void spin(int* stop) { while (*(volatile int*) stop == 0) {} }'


def products(share: float, device: str = "cuda", lasts_s: float = LASTS_S) -> None:
    """Multiply matrices without a pause, and hold ``share`` of the GPU's memory."""
    import torch  # noqa: PLC0415

    size = 8192 if device == "cuda" else 64
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    held, out = None, left @ right
    if share and device == "cuda":
        free, whole = torch.cuda.mem_get_info()
        held = torch.empty(max(0, int(share * whole) - (whole - free)), dtype=torch.uint8, device=device)
    _ready()
    ends = time.monotonic() + lasts_s
    while time.monotonic() < ends:
        for _ in range(20):
            torch.mm(left, right, out=out)
        if device == "cuda":
            torch.cuda.synchronize()
    del held


def spin(blocks: int) -> None:
    """Have one thread on each of some SMs wait for what never comes, as a kernel of a collective does."""
    import torch  # noqa: PLC0415

    kernel = torch.cuda._compile_kernel(SPIN, "spin")
    stop = torch.zeros(1, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    kernel(grid=(blocks, 1, 1), block=(1, 1, 1), args=[stop])
    _ready()
    time.sleep(LASTS_S)
    os._exit(0)  # leaving by the usual way would wait for the kernel


@contextmanager
def running(way: str, share: float = 0.0) -> Iterator[subprocess.Popen[bytes]]:
    """A process that loads the GPU; it is killed, and gone, at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.gpu.load", way, str(share)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        os.set_blocking(descriptor, False)
        output = b""

        def ready() -> bool:
            nonlocal output
            assert process.poll() is None, f"the load {way} ended with status {process.returncode}"
            output += process.stdout.read() or b"" if process.stdout else b""
            return b"ready" in output

        wait_for(f"the load {way}", ready, READY_S, every_s=0.02)
        yield process
    finally:
        process.kill()
        process.wait(30)


def _ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def main(way: str, share: str) -> None:
    """Start the load that the command line names."""
    if way == "spin":
        spin(max(1, int(float(share))))
    else:
        products(float(share), "cpu" if way == "cpu" else "cuda")


if __name__ == "__main__":
    main(*sys.argv[1:])
