"""A machine's checkpoint memory without the bytes: it reports its shards, and makes a file only of those asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.agent.checkpoints.memory import Memory
from holdfast.models.checkpoint import Shard, Tier
from holdfast.storage.checkpoints.save import buffers, slot_files

_META = b"scripted"
_PAYLOAD_BYTES = 4096
KEPT = 2
"""Steps of each rank: there are two slots."""


@dataclass(frozen=True)
class Held:
    """The newest shards of some ranks."""

    job: str
    ranks: tuple[int, ...]
    epoch: int
    step: int
    world_size: int
    first: int
    """No older step is there."""

    @property
    def steps(self) -> Iterator[int]:
        """Newest first."""
        yield from range(self.step, max(self.first - 1, self.step - KEPT, 0), -1)

    def has(self, rank: int, step: int, saved_by: int) -> bool:
        """Whether a rank's shard of a step is among them; of epoch ``saved_by``, unless that is 0."""
        return rank in self.ranks and step in self.steps and saved_by in (0, self.epoch)


class ScriptedMemory(Memory):
    """Its own ranks' shards, and a neighbour's."""

    def __init__(self, machine: str, root: Path, disk: Path | None = None, nvme: Path | None = None) -> None:
        super().__init__(machine, root, disk, nvme)
        self.held: dict[tuple[str, Tier], Held] = {}

    def saved(self, tier: Tier, held: Held) -> None:
        """Shards of a step are here."""
        known = self.held.get((held.job, tier))
        same = known is not None and (known.epoch, known.ranks) == (held.epoch, held.ranks)
        first = known.first if known is not None and same else held.step
        self.held[held.job, tier] = replace(held, first=first)

    def shards(self, saved: tuple[str, int] | None = None) -> tuple[Shard, ...]:
        """Shards that it would hold, and those that came from other machines."""
        scripted = tuple(
            Shard(
                job=held.job,
                rank=rank,
                step=step,
                epoch=held.epoch,
                machine=self.machine,
                tier=tier,
                nbytes=2 << 30,
                digest=f"{rank:08x}{step:024x}",
                world_size=held.world_size,
            )
            for (_, tier), held in self.held.items()
            for step in held.steps
            if saved in {None, (held.job, step)}
            for rank in held.ranks
        )
        return scripted + super().shards(saved)

    def find(
        self, job: str, rank: int, step: int, saved_by: int = 0, *, without: Collection[Path] = ()
    ) -> tuple[Path, buffers.ShardHeader] | None:
        """A shard that it reports, made a file."""
        for (name, tier), held in self.held.items():
            if name == job and held.has(rank, step, saved_by):
                _write(self.own(job) if tier is Tier.MEMORY else self.peer(job), held, rank, step)
        return super().find(job, rank, step, saved_by, without=without)

    def require_whole(
        self, job: str, rank: int, step: int, saved_by: int = 0, damaged: list[str] | None = None
    ) -> tuple[Path, buffers.ShardHeader]:
        """A rank's own shard is not read: it has no bytes."""
        if self.claims(job, rank, step, saved_by):
            return self.own(job) / "scripted", _header(self.held[job, Tier.MEMORY], rank, step)
        return super().require_whole(job, rank, step, saved_by, damaged)

    def claims(self, job: str, rank: int, step: int, saved_by: int) -> bool:
        """Whether it reports that it holds a rank's own shard."""
        held = self.held.get((job, Tier.MEMORY))
        return held is not None and held.has(rank, step, saved_by)

    def resume_after(self, job: str, step: int) -> None:
        """Forget what is newer."""
        for key, held in self.held.items():
            if held.job == job and held.step > step:
                self.held[key] = replace(held, step=max(step, held.first - 1))
        super().resume_after(job, step)

    def forget(self, job: str) -> None:
        """Forget all of it."""
        self.held = {key: held for key, held in self.held.items() if held.job != job}
        super().forget(job)


def _header(held: Held, rank: int, step: int) -> buffers.ShardHeader:
    at = buffers.HEADER_BYTES + len(_META)
    return buffers.ShardHeader(
        job=held.job,
        rank=rank,
        step=step,
        epoch=held.epoch,
        world_size=held.world_size,
        plan="1",
        meta_offset=buffers.HEADER_BYTES,
        meta_nbytes=len(_META),
        payload_offset=at,
        owned_nbytes=_PAYLOAD_BYTES,
        payload_nbytes=_PAYLOAD_BYTES,
        file_nbytes=at + _PAYLOAD_BYTES,
    )


def _write(folder: Path, held: Held, rank: int, step: int) -> None:
    header = _header(held, rank, step)
    with slot_files.create(buffers.slot_to_overwrite(folder, rank), header.file_nbytes) as buffer:
        buffers.begin(buffer)
        buffer[buffers.HEADER_BYTES :] = _META + bytes([rank % 256]) * _PAYLOAD_BYTES
        buffers.commit(buffer, header.model_copy(update={"digest": buffers.digest_of(buffer, header)}))
