"""Digests of a replay, step by step: loss, gradients as optimizers get them, parameters as they leave them.

Compared with digests of other groups of machines that compute the same state and data
(:mod:`holdfast.policies.diagnose.agreement`): it shows results that are wrong by a single bit.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
import xxhash
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from holdfast.agent.diagnostics.computing import kind_of
from holdfast.session.encoded import local
from holdfast.storage.checkpoints.format.item_bytes import bytes_of

MOST_STEPS_SENT = 256
"""The outcome of a replay is one datagram."""


class Digests:
    """Digests the work of all optimizers of the process."""

    def __init__(self) -> None:
        self.kind = ""
        self._steps: list[dict[str, Any]] = []
        self._gradients, self._parameters = xxhash.xxh3_128(), xxhash.xxh3_128()
        self._updates = 0
        me = weakref.ref(self)

        def before(optimizer: Optimizer, *_: object) -> None:
            if (alive := me()) is not None:
                alive._take_gradients(_params(optimizer))

        def after(optimizer: Optimizer, *_: object) -> None:
            if (alive := me()) is not None:
                alive._take_parameters(_params(optimizer))

        for handle in (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)):
            weakref.finalize(self, handle.remove)

    def step(self, step: int, loss: float | None, grad_norm: float | None) -> None:
        """Digest a complete step."""
        updated = self._updates > 0
        if len(self._steps) < MOST_STEPS_SENT:
            self._steps.append(
                {
                    "step": step,
                    "loss": "" if loss is None else loss.hex(),
                    "grad_norm": "" if grad_norm is None else grad_norm.hex(),
                    "gradients": self._gradients.hexdigest() if updated else "",
                    "parameters": self._parameters.hexdigest() if updated else "",
                }
            )
        self._gradients.reset()
        self._parameters.reset()
        self._updates = 0

    def report(self) -> dict[str, Any]:
        """Return the digests, for the agent."""
        return {"digests": self._steps, "hardware": self.kind}

    def _take_gradients(self, params: Iterable[Tensor]) -> None:
        self._updates += 1
        for param in params:
            if param.grad is None:
                self._gradients.update(b"none")
            else:
                self._gradients.update(_bytes(param.grad))

    def _take_parameters(self, params: Iterable[Tensor]) -> None:
        for param in params:
            self.kind = self.kind or kind_of(local(param).device)
            self._parameters.update(_bytes(param))


def _params(optimizer: Optimizer) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _bytes(tensor: Tensor) -> memoryview:
    held = local(tensor.detach())
    if held.layout is not torch.strided:
        held = held.to_dense()
    return bytes_of(held.resolve_conj().resolve_neg().cpu().contiguous())
