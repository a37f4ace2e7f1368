"""Bit-wise alignment: every machine trains the same small GPT for one step, and all results of it are digested.

Method: ByteDance, arXiv 2509.16293, section 5 (MiniGPT, fixed weights and input). In float32 and bfloat16 in each
process by itself; and where a machine has several, as one job over them: data-, tensor- and pipeline-parallel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.agent.diagnostics import check_group
from holdfast.agent.diagnostics.check_part import CheckOutcome, CheckPart
from holdfast.agent.diagnostics.computing import compute_on, kind_of

if TYPE_CHECKING:
    import torch

SEED = 20
_WORDS, _BATCH, _CONTEXT, _WIDTH, _HEADS = 128, 2, 32, 32, 2
_GPU_WORDS, _GPU_BATCH, _GPU_CONTEXT, _GPU_WIDTH, _GPU_HEADS = 4096, 8, 512, 512, 8


def bitwise(part: CheckPart) -> CheckOutcome:
    """Run one step alone, in both formats, then one together; digest the results."""
    return compute_on(part, lambda device: _bitwise(part, device))


def _bitwise(part: CheckPart, device: torch.device) -> CheckOutcome:
    import torch  # noqa: PLC0415

    torch.use_deterministic_algorithms(True, warn_only=True)
    alone = [_alone(device, dtype) for dtype in (torch.float32, torch.bfloat16)]
    kind = f"{kind_of(device)}, plain attention" if device.type == "cuda" else kind_of(device)
    found = CheckOutcome(digest=_digest(tensor for each in alone for tensor in each), kind=kind)
    if part.size < 2:
        return found
    try:
        # A share of the time: a group that cannot be formed must not cost what was computed alone.
        together = check_group.in_group(replace(part, timeout_s=part.timeout_s / 3), _together)
    except Exception as error:
        return replace(found, together=f"not tested: {type(error).__name__}: {error}"[:200])
    return replace(found, together=together.digest)


def _alone(device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
    model = _Model(device, dtype)
    loss = model.loss(model.blocks(model.embed(0)), 0)
    return [loss, *model.update(loss)]


def _together(part: CheckPart, device: torch.device) -> CheckOutcome:
    computed: list[torch.Tensor] = []
    for run in (_data_parallel, _tensor_parallel, _pipeline_parallel):
        computed += run(part, device)
    return CheckOutcome(digest=_digest(computed))


def _data_parallel(part: CheckPart, device: torch.device) -> list[torch.Tensor]:
    """Give each process other tokens; gradients are summed over all."""
    import torch.distributed as dist  # noqa: PLC0415

    model = _Model(device)
    loss = model.loss(model.blocks(model.embed(part.rank)), part.rank)
    loss.backward()  # type: ignore[no-untyped-call]
    for gradient in model.gradients():
        dist.all_reduce(gradient)
    return [loss, *model.update()]


def _tensor_parallel(part: CheckPart, device: torch.device) -> list[torch.Tensor]:
    """Split heads and hidden units among the processes; their results are summed in every block."""
    model = _Model(device, split=part.size, seed=SEED + part.rank)
    loss = model.loss(model.blocks(model.embed(0)), 0)
    return [loss, *model.update(loss)]


def _pipeline_parallel(part: CheckPart, device: torch.device) -> list[torch.Tensor]:
    """Give each process a block; activations go forward from one to the next, their gradients back."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    model = _Model(device, seed=SEED + part.rank)
    given = model.embed(0)
    if part.rank:
        given = torch.empty_like(given).requires_grad_()
        dist.recv(given.data, part.rank - 1)
    made = model.blocks(given)
    last = part.rank == part.size - 1
    if last:
        made = model.loss(made, 0)
        made.backward()  # type: ignore[no-untyped-call]
    else:
        dist.send(made.detach().contiguous(), part.rank + 1)
        back = torch.empty_like(made)
        dist.recv(back, part.rank + 1)
        made.backward(back)  # type: ignore[no-untyped-call]
    if part.rank:
        assert given.grad is not None
        dist.send(given.grad.contiguous(), part.rank - 1)
    return [made.detach(), *model.update()]


class _Model:
    """A GPT of one block with fixed weights; with ``split`` this process has one of so many parts of the block."""

    def __init__(
        self, device: torch.device, dtype: torch.dtype | None = None, *, split: int = 1, seed: int = SEED
    ) -> None:
        import torch  # noqa: PLC0415

        large = device.type == "cuda"
        self._device, self._split, self._seed = device, split, seed
        self._dtype = dtype or (torch.bfloat16 if large else torch.float32)
        self._words, self._width = (_GPU_WORDS, _GPU_WIDTH) if large else (_WORDS, _WIDTH)
        self._heads = _GPU_HEADS if large else _HEADS
        self._batch, self._context = (_GPU_BATCH, _GPU_CONTEXT) if large else (_BATCH, _CONTEXT)
        width = self._width
        self._made = torch.Generator().manual_seed(seed)
        self._weights: dict[str, torch.Tensor] = {}
        for name, shape in {
            "words": (self._words, width),
            "qkv": (width, 3 * width),
            "out": (width, width),
            "up": (width, 4 * width),
            "down": (4 * width, width),
            "head": (width, self._words),
        }.items():
            weight = torch.randn(shape, generator=self._made) / width**0.5
            self._weights[name] = weight.to(device, self._dtype).requires_grad_()

    def _tokens(self, number: int) -> torch.Tensor:
        import torch  # noqa: PLC0415

        made = torch.Generator().manual_seed(SEED + number)
        shape = (self._batch, self._context + 1)
        return torch.randint(0, self._words, shape, generator=made).to(self._device)

    def embed(self, number: int) -> torch.Tensor:
        """Return the input of the block for batch ``number``."""
        found: torch.Tensor = self._weights["words"][self._tokens(number)[:, :-1]]
        return found

    def blocks(self, x: torch.Tensor) -> torch.Tensor:
        """Apply causal attention and a perceptron, each behind a norm and with a residual."""
        from torch.nn import functional as F  # noqa: N812, PLC0415

        w, norm = self._weights, (self._width,)
        mixed = self._enter(F.layer_norm(x, norm)) @ w["qkv"]
        q, k, v = mixed.view(*mixed.shape[:-1], 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        with _plain_attention() if self._device.type == "cuda" else nullcontext():
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self._leave(attended @ w["out"])
        hidden = F.gelu(self._enter(F.layer_norm(x, norm)) @ w["up"])
        return x + self._leave(hidden @ w["down"])

    def loss(self, x: torch.Tensor, number: int) -> torch.Tensor:
        """Return the cross entropy of the next token of batch ``number``."""
        from torch.nn.functional import cross_entropy  # noqa: PLC0415

        logits = x @ self._weights["head"]
        return cross_entropy(logits.flatten(0, 1).float(), self._tokens(number)[:, 1:].flatten())

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients of all weights that have one."""
        return [each.grad for each in self._weights.values() if each.grad is not None]

    def update(self, loss: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Go back from ``loss`` where that is not done, and make Adam's first step; return gradients and new weights.

        By hand: torch.optim would load torch._dynamo, seconds of every process.
        """
        import torch  # noqa: PLC0415

        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for weight in self._weights.values():
                if weight.grad is not None:
                    weight.sub_(1e-3 * weight.grad / (weight.grad.square().sqrt() + 1e-8))
        return [*self.gradients(), *(each.detach() for each in self._weights.values())]

    def _enter(self, x: torch.Tensor) -> torch.Tensor:
        return _exchanged(x, forward=False) if self._split > 1 else x

    def _leave(self, x: torch.Tensor) -> torch.Tensor:
        return _exchanged(x, forward=True) if self._split > 1 else x


def _plain_attention() -> AbstractContextManager[None]:
    """Have attention made of matrix products.

    The backward passes of the fused kernels for GPUs add up in an order of their own each time, where an algorithm that
    is not deterministic is only warned of: healthy machines would differ.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: PLC0415

    return sdpa_kernel(SDPBackend.MATH)


def _exchanged(x: torch.Tensor, *, forward: bool) -> torch.Tensor:
    """Sum over all processes: ``x`` on the way forward, or its gradient on the way back."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, given: torch.Tensor) -> torch.Tensor:
            return summed(given) if forward else given.view_as(given)

        @staticmethod
        def backward(_ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0] if forward else summed(gradients[0])

    def summed(given: torch.Tensor) -> torch.Tensor:
        total = given.contiguous().clone()
        dist.all_reduce(total)
        return total

    found: torch.Tensor = Sum.apply(x)  # type: ignore[no-untyped-call]
    return found


def _digest(tensors: Iterable[torch.Tensor]) -> str:
    import torch  # noqa: PLC0415

    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]
