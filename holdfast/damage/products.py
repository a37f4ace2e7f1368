"""Wrong matrix products, on the CPU and on GPUs: kernels of ``mm``, ``addmm`` and ``bmm`` that damage their result.

The overrides compute through the ``out=`` variants, which share the stock implementation: without damage the
results are the stock ones bit for bit. The dispatcher takes a new kernel while other threads compute; a call
under way ends with the kernel that it began with.
"""

from __future__ import annotations

import threading
import warnings

import torch

WRONG_BITS = 0b110
"""Bits of the fraction that change: a finite value stays finite, 2 to 6 units in the last place off."""
_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}

_lock = threading.Lock()
_library: torch.library.Library | None = None
_always = False
_slightly = False
_pending = 0


def set_always(on: bool) -> None:
    """Damage every product from now on, or none."""
    global _always  # noqa: PLW0603
    _always = on
    if on:
        _install()


def set_slightly(on: bool) -> None:
    """Make every product from now on wrong by some units in the last place of one element, or none."""
    global _slightly  # noqa: PLW0603
    _slightly = on
    if on:
        _install()


def poison_once() -> None:
    """Damage the next product, then none."""
    global _pending  # noqa: PLW0603
    with _lock:
        _pending += 1
    _install()


def _install() -> None:
    global _library  # noqa: PLW0603
    with _lock:
        if _library is not None:
            return
        library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "Overriding a previously registered kernel": on purpose
            for device in _devices():
                for name, kernel in (("mm", _mm), ("addmm", _addmm), ("bmm", _bmm)):
                    library.impl(name, kernel, device, allow_override=True)  # type: ignore[no-untyped-call]
        _library = library


def _devices() -> tuple[str, ...]:
    """Return the dispatcher's names of the devices that this torch is built for; AMD's GPUs have NVIDIA's."""
    return ("CPU", "CUDA") if torch.backends.cuda.is_built() else ("CPU",)  # type: ignore[no-untyped-call]


def _mm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    out = left.new_empty((left.shape[0], right.shape[1]))
    torch.mm(left, right, out=out)
    return _damage(out)


def _addmm(
    bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    out = left.new_empty((left.shape[0], right.shape[1]))
    torch.addmm(bias, left, right, beta=beta, alpha=alpha, out=out)
    return _damage(out)


def _bmm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    out = left.new_empty((left.shape[0], left.shape[1], right.shape[2]))
    torch.bmm(left, right, out=out)
    return _damage(out)


def _damage(out: torch.Tensor) -> torch.Tensor:
    """Set the first element to infinity, or flip bits of it, if that is due; always there, so it reproduces."""
    if out.numel() and out.is_floating_point() and (_always or _take()):
        out.view(-1)[0] = float("inf")
    elif out.numel() and _slightly and out.dtype in _BITS:
        out.view(-1).view(_BITS[out.dtype])[0] ^= WRONG_BITS
    return out


def _take() -> bool:
    global _pending  # noqa: PLW0603
    if not _pending:
        return False
    with _lock:
        taken = _pending > 0
        _pending -= taken
    return taken
