"""Makes small shard files as a rank would leave them."""

from __future__ import annotations

from pathlib import Path

from holdfast.storage.checkpoints.save import buffers, slot_files

META = b"metadata of the rank's own items"


def write_shard(
    folder: Path,
    rank: int = 0,
    step: int = 1,
    epoch: int = 1,
    *,
    job: str = "toy",
    slot: str | None = None,
    payload: bytes = b"",
    owned: int | None = None,
    number: int = 0,
) -> Path:
    """A complete shard; returns its path."""
    payload = payload or f"weights of rank {rank} at step {step}".encode() * 100
    at = buffers.HEADER_BYTES + len(META)
    header = buffers.ShardHeader(
        job=job,
        rank=rank,
        step=step,
        epoch=epoch,
        world_size=2,
        plan="plan",
        meta_offset=buffers.HEADER_BYTES,
        meta_nbytes=len(META),
        payload_offset=at,
        owned_nbytes=len(payload) // 2 if owned is None else owned,
        payload_nbytes=len(payload),
        file_nbytes=at + len(payload),
        number=number,
    )
    path = buffers.shard_path(folder, rank, slot) if slot else buffers.slot_to_overwrite(folder, rank)
    with slot_files.create(path, header.file_nbytes) as buffer:
        buffers.begin(buffer)
        buffer[buffers.HEADER_BYTES :] = META + payload
        buffers.commit(buffer, header.model_copy(update={"digest": buffers.digest_of(buffer, header)}))
    return path
