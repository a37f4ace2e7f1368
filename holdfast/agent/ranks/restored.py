"""Where a rank finds its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Restored:
    """Where a rank finds the state that it resumes from: the content of its ticket."""

    step: int
    tier: str
    path: str = ""
    """A shard in memory, already verified."""
    paths: tuple[str, ...] | None = None
    """Verified shards of another number of ranks that this rank reads for all; None: it has its own."""
    epoch: int = 0
    """The epoch that saved ``paths``."""
    key: str = ""
    """A checkpoint in S3: what the rank reads, or, when it has a shard, what all ranks may turn to."""
    job: str = ""
    """The job that the checkpoint must be of."""
    alone: bool = False
    """Whether this rank reads it by itself, while others have their shards."""
    store: Mapping[str, str] = field(default_factory=dict)
    """Settings with which to reach S3."""
    passed_over: tuple[str, ...] = ()
    """Cheaper sources that were refused, each with its reason: they had been planned, or were found damaged."""
    start_from: Mapping[str, Any] | None = None
    """The source of a job that has no state of its own (:class:`.StartFrom`)."""
