"""Process groups of an epoch that is over: broken off, and forgotten so that the next epoch can make its own."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from holdfast.session.keep import gloo_sockets


def break_off() -> None:
    """Make all collectives of this process return with an error. From any thread, and as often as needed."""
    gloo_sockets.shut_down()
    if "torch.distributed" in sys.modules:
        _abort_on_devices()


def forget() -> None:
    """Leave torch without groups, as in a new process. On the main thread, which is in no collective.

    The groups are never released (:mod:`holdfast.session.kept_groups`): each epoch that a process outlives leaves
    their threads and descriptors behind.
    """
    if "torch.distributed" not in sys.modules:
        return
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast.session import agreement, kept_groups  # noqa: PLC0415

    kept_groups.keep_the_scripts()
    if dist.is_initialized():
        dist.distributed_c10d._abort_process_group()
    agreement.begin_epoch()


def _abort_on_devices() -> None:
    """Abort NCCL's groups, all together: one after the other they would wait for each other."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    if not (dist.is_available() and dist.is_nccl_available() and torch.cuda.is_available()):
        return
    found: list[Any] = []
    for group in list(dist.distributed_c10d._world.pg_map):
        with contextlib.suppress(RuntimeError):  # it has no devices
            backend: Any = group._get_backend(torch.device("cuda"))
            if hasattr(backend, "abort"):
                found.append(backend)
    # Gloo's groups serve devices, too, by way of the host, and have no such call.
    first = next((backend for backend in found if hasattr(backend, "_group_start")), None)
    if first is not None:
        first._group_start()
    try:
        for backend in found:
            with contextlib.suppress(RuntimeError):  # it was aborted before, or by torch's watchdog
                backend.abort()
    finally:
        if first is not None:
            first._group_end()
