"""Pages of shared memory that CUDA knows, so that copies into them are asynchronous."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

import torch

from holdfast.storage.checkpoints.load.exchange import own_device
from holdfast.storage.checkpoints.save.slot_lock import LockedMap

_PORTABLE = 1
"""``cudaHostRegisterPortable``."""


def pin(buffer: LockedMap) -> None:
    """Register mapped pages with CUDA, without which a copy into them would not be asynchronous.

    The registration ends with the mapping. A failure (no such right, a limit on locked memory) only makes the copy
    slower. It is made by the rank's own GPU, or it would take memory of the current one that the rank does not use; and
    holds for all, where a rank has several.
    """
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    device = own_device()
    with _current(device):
        if int(_cuda_runtime().cudaHostRegister(address, len(buffer), _PORTABLE)):
            _take_error()
        else:
            buffer.pinned = partial(_unpin, address, os.getpid(), device)


def _unpin(
    address: int, owner: int, device: torch.device, ending: Callable[[], bool] = sys.is_finalizing
) -> None:
    """End what :func:`pin` began in the process ``owner``. A fork of it has no part in that; its end does so too."""
    if ending() or os.getpid() != owner:
        return
    with _current(device):
        if int(_cuda_runtime().cudaHostUnregister(address)):
            _take_error()


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Make ``device`` the current one meanwhile, where it is a certain one."""
    return nullcontext() if device.index is None else torch.cuda.device(device)


def _take_error() -> None:
    """Take the error of a call to CUDA's runtime that failed: it would be raised by the next kernel of this thread.

    Torch has no call that returns it. The launch of a kernel raises it, and it is taken by that.
    """
    with suppress(RuntimeError):
        torch.zeros(1, device="cuda").add_(1)


def _cuda_runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
