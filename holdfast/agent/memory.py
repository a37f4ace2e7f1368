"""The machine's shared memory for checkpoints: which shards lie here, and in which folders."""

from __future__ import annotations

import shutil
from pathlib import Path

from holdfast.errors import CheckpointError
from holdfast.models.checkpoint import Shard, Tier
from holdfast.storage.checkpoints import buffers

_FOLDERS = {Tier.MEMORY: "own", Tier.PEER: "peer"}


def base_job(job: str) -> str:
    """The job itself, for a job or one of its replays (named ``<job>~<group>``)."""
    return job.partition("~")[0]


class Memory:
    """Folders ``own/<job>/`` (written by ranks) and ``peer/<job>/`` (copies for neighbours)."""

    def __init__(self, machine: str, root: Path) -> None:
        self.root = root
        self.accept_from: dict[str, int] = {}
        """Per job, the oldest epoch of which the shard port still takes copies: the one that runs here."""
        self._machine = machine

    def own(self, job: str) -> Path:
        """Where the ranks of ``job`` on this machine keep their shards."""
        return self.root / "own" / job

    def peer(self, job: str) -> Path:
        """Where copies of other machines' shards lie."""
        return self.root / "peer" / job

    def shards(self) -> tuple[Shard, ...]:
        """Every complete shard that lies here."""
        return tuple(
            Shard(
                job=header.job,
                rank=header.rank,
                step=header.step,
                epoch=header.epoch,
                machine=self._machine,
                tier=tier,
                nbytes=header.file_nbytes,
                digest=header.digest,
            )
            for tier, name in _FOLDERS.items()
            for folder in sorted(self.root.glob(f"{name}/*"))
            for _, header in buffers.inventory(folder)
        )

    def find(self, job: str, rank: int, step: int) -> tuple[Path, buffers.ShardHeader] | None:
        """The shard of ``rank`` at ``step``, of the newest epoch that has one; the machine's own first."""
        found = [
            (header.epoch, order, path, header)
            for order, folder in enumerate((self.peer(job), self.own(job)))
            for path, header in buffers.inventory(folder)
            if (header.rank, header.step) == (rank, step)
        ]
        if not found:
            return None
        _, _, path, header = max(found, key=lambda item: item[:2])
        return path, header

    def require(self, job: str, rank: int, step: int) -> tuple[Path, buffers.ShardHeader]:
        """As :meth:`find`.

        Raises:
            CheckpointError: there is no such shard here.
        """
        if (found := self.find(job, rank, step)) is None:
            has = sorted(shard.step for shard in self.shards() if (shard.job, shard.rank) == (job, rank))
            raise CheckpointError(
                f"machine {self._machine}: no shard of job {job!r} rank {rank} at step {step} "
                f"(has steps {has}). Fetch it first, or restore an older step or from S3."
            )
        return found

    def resume_after(self, job: str, step: int) -> None:
        """Forget shards beyond ``step``: training goes on from there, they belong to no future."""
        for folder in (self.own(job), self.peer(job)):
            buffers.discard_newer(folder, step)

    def forget(self, job: str) -> None:
        """Drop every shard of ``job``."""
        for folder in (self.own(job), self.peer(job)):
            shutil.rmtree(folder, ignore_errors=True)
