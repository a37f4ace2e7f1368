"""What a detector is, and the figures that detectors go by."""

from __future__ import annotations

from typing import Protocol

from pydantic import Field

from holdfast.models.alert import Alert, Finding
from holdfast.models.base import Frozen


class Limits(Frozen):
    """Intervals (arXiv 2509.16293: host 2 s, GPU 10 s) and thresholds.

    Low memory and a full disk are worth an alert only when a job cannot go on with what is left: the limits
    are set low, so that a busy machine is not a faulty one.
    """

    kernel_log_s: float = Field(0.25, gt=0)
    """A poll of the kernel log costs one ``stat``, so it runs more often than the other host checks."""
    host_s: float = Field(2.0, gt=0)
    gpu_s: float = Field(10.0, gt=0)
    repeat_s: float = Field(5.0, ge=0)
    """The same signal again within this time is not reported again."""
    recent_s: float = Field(300.0, gt=0)
    """An inspection on command reports Xids of this last time."""
    memory_free_share: float = Field(0.01, ge=0, lt=1)
    disk_free_bytes: int = Field(64 << 20, ge=0)
    misses: int = Field(3, ge=1)
    """A host check fires after so many failures in a row."""


class Detector(Protocol):
    """One way to look at one part of the machine. Implementations never raise for a missing device."""

    name: str
    interval_s: float
    blocking: bool
    """Calls may block on a device: they run in a thread."""

    def poll(self) -> list[Alert]:
        """What went wrong since the last call; called every ``interval_s`` seconds."""
        ...

    def inspect(self) -> list[Finding]:
        """The state now, looked at afresh; good results included. No findings: nothing here to look at."""
        ...
