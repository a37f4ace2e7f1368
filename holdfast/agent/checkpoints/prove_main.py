"""Body of the process that rehearses a restore: beside training, and last in every queue."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

import psutil
import torch

from holdfast.models.rehearsal import Proof
from holdfast.settings import Settings
from holdfast.storage.checkpoints.load.prove import prove
from holdfast.storage.checkpoints.remote.prove_remote import prove_remote
from holdfast.storage.objects import from_settings

NICE = 19


def prove_shard(outcome: Path, allowed: Collection[str] | None, path: Path) -> None:
    """Prove the shard file at ``path``; what came of it is in the file ``outcome``."""
    stand_back()
    _leave(outcome, prove(path, allowed))


def prove_checkpoint(outcome: Path, allowed: Collection[str] | None, settings: Settings, key: str) -> None:
    """As :func:`prove_shard`, the checkpoint in S3 with prefix ``key``."""
    stand_back()
    _leave(outcome, prove_remote(from_settings(settings), key, allowed))


def stand_back() -> None:
    """One thread, the lowest priority for processor and disks, and the first to go when memory runs out."""
    torch.set_num_threads(1)
    os.nice(NICE - os.nice(0))
    with contextlib.suppress(OSError, AttributeError, psutil.Error):  # not on every host
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _leave(outcome: Path, proof: Proof) -> None:
    fresh = outcome.with_suffix(".new")
    fresh.write_text(proof.model_dump_json())
    fresh.rename(outcome)
