"""Copies from CUDA devices to the host, each on a stream of its own beside training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Pairs = tuple[list[Tensor], list[Tensor]]
"""Targets and sources."""


class DeviceLane:
    """CUDA streams for copies to the host: one for each device that the rank's tensors lie on."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def start(self, moves: Mapping[torch.device, Pairs]) -> DeviceCopy:
        """Copy as soon as the work that is queued on the current streams is done."""
        return DeviceCopy({device: self._copy(device, *some) for device, some in moves.items()})

    def _copy(self, device: torch.device, targets: list[Tensor], sources: list[Tensor]) -> torch.cuda.Event:
        """Copy from one device: a copy runs on a stream of the device that it comes from, whichever is current."""
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.no_grad(), torch.cuda.stream(stream):
            torch._foreach_copy_(targets, sources, non_blocking=True)  # in one call: training waits for it
            for source in sources:
                # The allocator must not hand the memory out again before the copy is done.
                source.record_stream(stream)
            # A thread that waits for it sleeps, and leaves the processor to training.
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            stream.record_event(event)
        return event


@dataclass(frozen=True)
class DeviceCopy:
    """A copy under way."""

    events: Mapping[torch.device, torch.cuda.Event]
    """The end of it, on each device."""

    def before_update(self) -> None:
        """Have the current streams, on which the optimizer runs, wait for the copy; returns at once."""
        for device, event in self.events.items():
            torch.cuda.current_stream(device).wait_event(event)

    def synchronize(self) -> None:
        """Wait for the copy."""
        for event in self.events.values():
            event.synchronize()
