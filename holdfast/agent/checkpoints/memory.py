"""The machine's shared memory for checkpoints: which shards lie here, and in which folders."""

from __future__ import annotations

import contextlib
import mmap
import shutil
from collections.abc import Collection
from pathlib import Path

from holdfast import private
from holdfast.errors import CheckpointError, DamagedError
from holdfast.models.checkpoint import FirstTier, Shard, Tier
from holdfast.storage.checkpoints.save import buffers, local_disk, room, slot_files

SPARE_NBYTES = 1 << 30
"""Left free on the disk by copies that wait for their upload."""

_FOLDERS = {Tier.MEMORY: "own", Tier.PEER: "peer", Tier.DISK: "disk"}


def base_job(job: str) -> str:
    """Return the job itself, for a job or one of its replays (named ``<job>~<group>``)."""
    return job.partition("~")[0]


def _inventory(folder: Path) -> list[tuple[Path, buffers.ShardHeader]]:
    """Return the complete shards in a job's folder that are of this job, and of the rank in their names.

    A file that was copied there by hand, under another one's name, is whole and has other weights.
    """
    return [
        (path, header)
        for path, header in buffers.inventory(folder)
        if (header.job, header.rank) == (folder.name, buffers.rank_of(path))
    ]


class Memory:
    """Folders ``own/<job>/`` (written by ranks) and ``peer/<job>/`` (copies for neighbours).

    With them goes ``disk/<job>/``, where a job that wants it has its shards on the machine's disk as well. A job whose
    first tier is the disk has its own and its neighbours' shards in the same folders under ``nvme``: the same files,
    mapped as those in shared memory are.
    """

    def __init__(self, machine: str, root: Path, disk: Path | None = None, nvme: Path | None = None) -> None:
        self.root = root
        self._disk = disk or root
        self._nvme = nvme
        self._first: dict[str, Path] = {}
        self.accept_from: dict[str, int] = {}
        """Per job, the oldest epoch of which the shard port still takes copies: the one that runs here."""
        self.machine = machine
        self._maps: dict[Path, tuple[int, mmap.mmap]] = {}
        # What an earlier agent was about to upload when it died: no upload gives it back.
        for each in (*self._roots, self._disk):
            shutil.rmtree(each / "transfers", ignore_errors=True)
        # Nor does one of the next agent finish what it was copying; the rank may be another machine's by now.
        with contextlib.suppress(OSError):  # of a disk that failed: ranks of this machine may run without it
            for part in self._disk.glob(f"{_FOLDERS[Tier.DISK]}/*/*.part"):
                part.unlink(missing_ok=True)

    def transfers_on_disk(self, nbytes: int) -> Path | None:
        """Return where a copy of so many bytes may await upload; None: the disk has no room, or is memory, too."""
        folder = self._disk / "transfers"
        if local_disk.file_system(self._disk) == "tmpfs" or room.free_nbytes(folder) < nbytes + SPARE_NBYTES:
            return None
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

    def transfers_beside(self, slot: Path) -> Path:
        """Return where slots beside ``slot`` are lent to an upload: under a second name, without a copy."""
        return slot.parents[2] / "transfers"

    def is_single(self, slot: Path) -> bool:
        """Return whether a rank of this machine has no other buffer than ``slot``."""
        if slot.parent.parent.name != _FOLDERS[Tier.MEMORY]:
            return False
        _, other = buffers.only_slot(slot.parent, buffers.rank_of(slot))
        return not other.exists()

    def is_on_disk(self, slot: Path) -> bool:
        """Return whether it is a copy in the disk tier, which no rank writes to."""
        return slot.parent.parent.name == _FOLDERS[Tier.DISK]

    @property
    def _roots(self) -> tuple[Path, ...]:
        return (self.root,) if self._nvme is None else (self.root, self._nvme)

    def place(self, job: str, tier: FirstTier) -> None:
        """Have ``job`` keep its shards in ``tier`` from now on.

        Raises:
            CheckpointError: this machine has no local disk for it.
        """
        if tier is FirstTier.MEMORY:
            self._first[job] = self.root
            return
        if self._nvme is None:
            raise CheckpointError(
                f"job {job!r} has checkpoint.first_tier: disk, and machine {self.machine} has no folder for it: set "
                "HOLDFAST_FIRST_TIER_DIR for its agent to a folder on a local NVMe disk."
            )
        # The folder that was configured, above those of this machine.
        local_disk.require(self._nvme.parents[1])
        for folder in (self._nvme.parent, self._nvme):
            private.folder(folder)
        self._first[job] = self._nvme

    def _root(self, job: str) -> Path:
        """Return where the first tier of ``job`` lies: as it was placed, or where an earlier agent put it."""
        if (known := self._first.get(job)) is not None:
            return known
        if self._nvme is not None and any((self._nvme / name / job).exists() for name in ("own", "peer")):
            return self._nvme
        return self.root

    def own(self, job: str) -> Path:
        """Return where the ranks of ``job`` on this machine keep their shards."""
        return self._root(job) / "own" / job

    def peer(self, job: str) -> Path:
        """Return where copies of other machines' shards lie."""
        return self._root(job) / "peer" / job

    def disk(self, job: str) -> Path:
        """Return where shards of ``job`` lie that outlive a loss of the memory."""
        return self._disk / "disk" / job

    def folder(self, tier: Tier, job: str) -> Path:
        """Return where shards of ``job`` lie in a tier of this machine."""
        return (self._disk if tier is Tier.DISK else self._root(job)) / _FOLDERS[tier] / job

    def shards(self, saved: tuple[str, int] | None = None) -> tuple[Shard, ...]:
        """Return every complete shard that lies here; only those of ``saved``, a job and a step, if given."""
        return tuple(
            Shard(
                job=header.job,
                rank=header.rank,
                step=header.step,
                epoch=header.epoch,
                machine=self.machine,
                tier=tier,
                nbytes=header.file_nbytes,
                digest=header.digest,
                world_size=header.world_size,
                number=header.number,
            )
            for tier, name in _FOLDERS.items()
            for root in ((self._disk,) if tier is Tier.DISK else self._roots)
            for folder in sorted(root.glob(f"{name}/*"))
            if saved is None or folder.name == saved[0]
            for _, header in _inventory(folder)
            if saved is None or header.step == saved[1]
        )

    def find(
        self, job: str, rank: int, step: int, saved_by: int = 0, *, without: Collection[Path] = ()
    ) -> tuple[Path, buffers.ShardHeader] | None:
        """Return the shard of ``rank`` at ``step`` that epoch ``saved_by`` saved; the machine's own first.

        ``saved_by`` 0: of the newest epoch that has one. Of a step that was saved more than once the last save: an
        earlier one was not common. ``without``: files that are left out.
        """
        found = [
            (header.epoch, header.number, order, path, header)
            for order, folder in enumerate((self.disk(job), self.peer(job), self.own(job)))
            for path, header in _inventory(folder)
            if (header.rank, header.step) == (rank, step)
            and saved_by in (0, header.epoch)
            and path not in without
        ]
        if not found:
            return None
        *_, path, header = max(found, key=lambda item: item[:3])
        return path, header

    def require(self, job: str, rank: int, step: int, saved_by: int = 0) -> tuple[Path, buffers.ShardHeader]:
        """Return the same as :meth:`find`.

        Raises:
            CheckpointError: there is no such shard here.
        """
        if (found := self.find(job, rank, step, saved_by)) is None:
            has = sorted(shard.step for shard in self.shards() if (shard.job, shard.rank) == (job, rank))
            raise CheckpointError(
                f"machine {self.machine}: no shard of job {job!r} rank {rank} at step {step} "
                f"(has steps {has}). Fetch it first, or restore an older step or from S3."
            )
        return found

    def mapped(self, path: Path, file_nbytes: int) -> mmap.mmap:
        """Map the shard file at ``path`` for writing; the mapping is kept, because mapping its pages again is costly.

        Raises:
            CheckpointError: shared memory is full.
        """
        known = self._maps.get(path)
        try:
            found = path.stat()
        except FileNotFoundError:
            found = None
        usable = found is not None and found.st_size == file_nbytes and found.st_nlink == 1
        if known is None or not usable or found is None or known[0] != found.st_ino:
            self._maps.pop(path, None)
            made = slot_files.create(path, file_nbytes)
            known = self._maps[path] = (path.stat().st_ino, made)
        return known[1]

    def require_whole(
        self, job: str, rank: int, step: int, saved_by: int = 0, damaged: list[str] | None = None
    ) -> tuple[Path, buffers.ShardHeader]:
        """Do the same as :meth:`require`, and verify every byte. Discard a damaged shard and try the next one.

        What was damaged is added to ``damaged``, whether or not another one is whole.

        Raises:
            DamagedError: all that were here are damaged; names them.
            CheckpointError: there was none.
        """
        refused: list[str] = []
        paths: set[Path] = set()
        while (found := self.find(job, rank, step, saved_by, without=paths)) is not None:
            path = found[0]
            try:
                return path, buffers.verify(path)
            except (CheckpointError, OSError) as error:  # a disk may fail to read what it took
                paths.add(path)
                tier = next(tier for tier, name in _FOLDERS.items() if path.parent.parent.name == name)
                refused.append(f"job {job!r} step {step} rank {rank} ({tier} of {self.machine}): {error}")
                if damaged is not None:
                    damaged.append(refused[-1])
                with contextlib.suppress(OSError):  # on a file system that is read-only by now
                    buffers.discard(path)
        if refused:
            raise DamagedError("; ".join(refused))
        return self.require(job, rank, step, saved_by)

    def resume_after(self, job: str, step: int) -> None:
        """Forget shards beyond ``step``: training continues from there without them."""
        for folder in (self.own(job), self.peer(job), self.disk(job)):
            buffers.discard_newer(folder, step)

    def drop_strays(
        self,
        job: str,
        epoch: int,
        world_size: int,
        ranks: Collection[int],
        keeps: Collection[int] | None,
    ) -> list[Path]:
        """Remove shards of before ``epoch`` that another number of ranks saved, or that are kept elsewhere now.

        Returns their paths. The slots of this machine's own ``ranks`` stay: those have them mapped, and overwrite
        them. ``keeps``: ranks whose copies this machine keeps; None: not known, so that copies of this number of ranks
        stay.
        """
        own, peer = self.own(job), self.peer(job)
        kept = {own: ranks, peer: keeps}

        def stray(folder: Path, header: buffers.ShardHeader) -> bool:
            if folder == own and header.rank in ranks:
                return False
            here = kept[folder]
            return header.world_size != world_size or (here is not None and header.rank not in here)

        dropped = [
            path
            for folder in (own, peer)
            for path, header in buffers.inventory(folder)
            if header.epoch < epoch and stray(folder, header)
        ]
        for path in dropped:
            path.unlink(missing_ok=True)
            self._maps.pop(path, None)  # a mapping would hold the memory
        return dropped

    def forget(self, job: str) -> None:
        """Drop every shard of ``job``."""
        firsts = [root / name / job for root in self._roots for name in ("own", "peer")]
        for folder in (*firsts, self.disk(job)):
            shutil.rmtree(folder, ignore_errors=True)
            # A list at once: copies come in other threads.
            for path in [path for path in list(self._maps) if path.parent == folder]:
                self._maps.pop(path, None)
        self._first.pop(job, None)
