"""A weight that is not what the optimizer made it: one bit of it flips, below all that notices a change."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as of_torch

_BIT = 0x02
"""Bit to flip in the lowest byte: a finite value stays finite, one or two units in the last place off."""

_DEVICES = ("cpu", "cuda")


def flip_once() -> None:
    """Flip one bit of an optimizer's first weight after the next step of an optimizer of this process."""
    hook = _Once()
    module: Any = of_torch
    # Another dictionary in its place: the training thread may be at the hooks of a step.
    module._global_optimizer_post_hooks = OrderedDict({**module._global_optimizer_post_hooks, id(hook): hook})


class _Once:
    def __init__(self) -> None:
        self._done = False

    def __call__(self, optimizer: Optimizer, *_: object) -> None:
        if self._done:
            return
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if weight.numel() and weight.device.type in _DEVICES:
                    self._done = True
                    # Past torch's count of changes, as in hardware: that of ``data`` is its own.
                    first = weight.data[(0,) * weight.dim()].reshape(1)
                    first.view(torch.uint8)[0] ^= _BIT
                    return
