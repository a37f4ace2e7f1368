"""The bytes of a tensor's elements: in memory, and in an item of a file as stock torch finds them."""

from __future__ import annotations

import ctypes
import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.layout import Place, zip_form


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU.

    Not by way of numpy: torch lets no one resize a storage that numpy has seen, and scripts resize buffers in place.
    """
    flat = tensor.detach().reshape(-1).view(torch.uint8)
    if not flat.numel():
        return memoryview(bytearray())
    held: Any = (ctypes.c_ubyte * flat.numel()).from_address(flat.data_ptr())
    held.tensor = flat  # as long as the memory is looked at
    return memoryview(held).cast("B")


def stored(payload: memoryview, place: Place, sizes: Sequence[int], dtype: torch.dtype) -> memoryview:
    """Return the elements of the item at ``place``, found without the place that the metadata gives for them.

    An item is a zip file of ``torch.save``; one in the form that torch writes today is not copied.

    Raises:
        CheckpointError: it is of another shape or type.
        Exception: torch cannot read it.
    """
    form = zip_form(torch.Size(sizes), dtype)
    end = place.offset + place.length
    head, tail = place.offset + len(form.head), end - len(form.tail)
    if (
        place.length == form.nbytes
        and payload[place.offset : head] == form.head
        and payload[tail:end] == form.tail
    ):
        return payload[head:tail]
    found = torch.load(io.BytesIO(payload[place.offset : end]), map_location="cpu", weights_only=True)
    if not isinstance(found, Tensor) or tuple(found.shape) != tuple(sizes) or found.dtype != dtype:
        what = f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise CheckpointError(f"it holds {what}, its metadata says {dtype} {list(sizes)}")
    return bytes_of(found.contiguous())
