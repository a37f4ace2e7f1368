"""The group that processes of a check exchange in: of one machine's, or of a pair of machines.

Torch is imported inside the functions, as in :mod:`holdfast.agent.diagnostics.check_process`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.agent.diagnostics import devices, meeting
from holdfast.agent.diagnostics.check_part import CheckOutcome, CheckPart

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store  # type: ignore[attr-defined]

ExchangeFn = Callable[[CheckPart, "torch.device"], CheckOutcome]


def in_group(part: CheckPart, exchange: ExchangeFn) -> CheckOutcome:
    """Return what ``exchange`` finds in a group of all processes of this machine; :func:`leave_group` ends it."""
    from torch.distributed import FileStore  # type: ignore[attr-defined]  # noqa: PLC0415

    on_gpu = devices.gpus() >= part.size
    store = FileStore(str(Path(part.folder) / "store"), part.size)
    os.environ.update(part.env)
    return exchanged(part, store, devices.take_gpu(part.rank) if on_gpu else None, exchange)


def exchanged(
    part: CheckPart,
    store: Store,
    device: torch.device | None,
    exchange: ExchangeFn,
) -> CheckOutcome:
    """Return what ``exchange`` finds in a new group on ``device``; None: on the processor."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    torch.set_num_threads(1)
    meeting.bind(part)
    device = device or torch.device("cpu")
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        store=store,
        rank=part.rank,
        world_size=part.size,
        timeout=timedelta(seconds=part.timeout_s),
    )
    return replace(exchange(part, device), backend=backend, environment=env_digest(part.env))


def leave_group() -> None:
    """Leave the group of the check, if there is one.

    After the outcome is written: leaving takes longer than the exchange, and the peer may still be reading.
    """
    import torch.distributed as dist  # noqa: PLC0415

    if dist.is_initialized():
        dist.destroy_process_group()


def env_digest(env: Mapping[str, str]) -> str:
    """Return what differs where the variables do; empty: there are none."""
    return hashlib.sha256(json.dumps(sorted(env.items())).encode()).hexdigest()[:8] if env else ""
