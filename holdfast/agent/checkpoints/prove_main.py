"""Bodies of the process that reads shards beside training, last in every queue: to rehearse a restore, to digest."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path

import psutil
import torch
from pydantic import BaseModel

from holdfast.models.replica import StateDigests
from holdfast.settings import Settings
from holdfast.storage.checkpoints.load.prove import prove
from holdfast.storage.checkpoints.load.tensor_digests import tensor_digests
from holdfast.storage.checkpoints.remote.prove_remote import prove_remote
from holdfast.storage.objects import from_settings

NICE = 19


def prove_shard(outcome: Path, allowed: Collection[str] | None, path: Path) -> None:
    """Prove the shard file at ``path``; write the result to the file ``outcome``."""
    stand_back()
    _leave(outcome, prove(path, allowed))


def prove_checkpoint(outcome: Path, allowed: Collection[str] | None, settings: Settings, key: str) -> None:
    """Do the same as :func:`prove_shard` for the checkpoint in S3 with prefix ``key``."""
    stand_back()
    _leave(outcome, prove_remote(from_settings(settings), key, allowed))


def digest_shards(outcome: Path, step: int, shards: Mapping[int, Path]) -> None:
    """Digest what the shard files of some ranks hold, to be compared with their replicas."""
    stand_back()
    _leave(outcome, StateDigests.of(step, {rank: tensor_digests(path) for rank, path in shards.items()}))


def stand_back() -> None:
    """Use one thread and the lowest priority for processor and disks, and be killed first when memory runs out.

    No GPU is there for this process: those of the machine belong to its ranks, and their memory may be full.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    os.nice(NICE - os.nice(0))
    with contextlib.suppress(OSError, AttributeError, psutil.Error):  # not on every host
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _leave(outcome: Path, found: BaseModel) -> None:
    fresh = outcome.with_suffix(".new")
    fresh.write_text(found.model_dump_json())
    fresh.rename(outcome)
