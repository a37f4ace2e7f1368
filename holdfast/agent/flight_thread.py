"""In every rank: a thread that writes the rank's flight recording when it is asked, also while the rank hangs.

A Python signal handler runs in the main thread only, which hangs in a collective just then. So the signal is blocked
and waited for by a thread of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

SIGNAL = signal.SIGRTMIN + 11
ENV_PREFIX = "TORCH_FR_DUMP_TEMP_FILE"
"""PyTorch's own: NCCL's watchdog writes to this path and the rank's number."""


def start(rank: int) -> None:
    """Wait for the signal from now on; nothing happens without a place to write to. Main thread only.

    Otherwise the signal, whose default ends a process, would have to be kept from ranks that do not know it.
    """
    prefix = os.environ.get(ENV_PREFIX)
    # Before any other thread is started: they inherit the mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})
    if prefix:
        target = Path(f"{prefix}{rank}")
        threading.Thread(target=_wait, args=(target,), name="holdfast-flight", daemon=True).start()


def _wait(target: Path) -> None:
    while True:
        signal.sigwait({SIGNAL})
        try:
            write(target)
        except Exception as error:  # the recording is a help, never a reason to fail
            sys.stderr.write(f"holdfast: no flight recording: {error}\n")


def write(target: Path) -> None:
    """Write the recording, whole or not at all; a rank that has not loaded torch.distributed has none."""
    if "torch.distributed" not in sys.modules:
        return
    from torch._C._distributed_c10d import (  # type: ignore[attr-defined]  # noqa: PLC0415
        _dump_fr_trace,
    )

    content = _dump_fr_trace(includeCollectives=True, includeStackTraces=False, onlyActive=False)
    new = target.with_name(f"{target.name}.new")
    new.write_bytes(content)
    new.replace(target)
