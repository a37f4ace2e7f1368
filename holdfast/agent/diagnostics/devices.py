"""The GPUs that a process of a check can use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_NO_FAULT = (
    "is too old",
    "No CUDA GPUs are available",
    "Found no NVIDIA driver",
    "Cannot re-initialize CUDA in forked subprocess",
)
"""Torch's reasons for not using GPUs that are no fault of theirs: the job's image, what it may see, or a module that
the site has the fork server load (setting ``preload``) and that used CUDA there."""


def gpus() -> int:
    """Return how many GPUs torch sees.

    Raises:
        RuntimeError: torch can use none of those that the driver shows; as torch reports it. Ranks could not either,
            and a check of the processors in their place would find the machine well.
    """
    import torch  # noqa: PLC0415

    if torch.cuda.is_available():
        return torch.cuda.device_count()
    if torch.version.cuda is None:
        return 0
    from holdfast.agent.diagnostics import machine_state  # noqa: PLC0415  (only where they are looked for)

    if machine_state.visible_gpus():
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if not any(each in str(error) for each in _NO_FAULT):
                raise
    return 0


def gpu_ids(count: int) -> list[str]:
    """Return the names that the first ``count`` GPUs have in all the world."""
    import torch  # noqa: PLC0415

    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(count)]


def take_gpu(index: int) -> torch.device:
    """Have this process use a GPU from now on."""
    import torch  # noqa: PLC0415

    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device
