"""Saves one rank's state into its two shard files, in turn."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.item_bytes import bytes_of
from holdfast.storage.checkpoints.format.layout import ShardLayout, align, zip_form
from holdfast.storage.checkpoints.save import buffers, slot_files, slot_lock
from holdfast.storage.checkpoints.save.buffers import HEADER_BYTES, ShardHeader
from holdfast.storage.checkpoints.save.collector import Collector, Contents
from holdfast.storage.checkpoints.save.device_lane import DeviceLane
from holdfast.storage.checkpoints.save.pinned import pin
from holdfast.storage.checkpoints.save.prepared import ALL_STEADY, CopyTarget, Prepared, SteadyTensors
from holdfast.storage.checkpoints.save.transfer import Transfer, copy_all


@dataclass(frozen=True)
class Owner:
    """The owner of a shard."""

    job: str
    epoch: int
    rank: int
    world_size: int


@dataclass
class _Slot:
    """A mapped shard file that carries the layout's fixed bytes."""

    path: Path
    buf: slot_lock.LockedMap
    targets: list[CopyTarget]
    """Of the tensors, in the layout's order."""
    held: dict[int, bytes] = field(default_factory=dict)
    """Objects that lie there, by their offset."""
    prepared: Prepared | None = None
    seen: buffers.SeenHeader = field(default_factory=buffers.SeenHeader)


class Save:
    """One save under way: :meth:`run` finishes it, in a thread or at once."""

    def __init__(
        self,
        slot: _Slot,
        header: Callable[[], ShardHeader],
        step: int,
        transfer: Transfer,
        replicated: Sequence[Sequence[int]] = (),
    ) -> None:
        self.path = slot.path
        self.step = step
        self.torn: list[str] = []
        """Tensors that changed during the copy: the save does not count."""
        self.doubted = False
        """Whether tensors may have changed during the copy, though none shows it: nor does it count then."""
        self._waited = False
        self._slot = slot
        self._header = header
        self._transfer = transfer
        self._names = slot.prepared.names if slot.prepared else []
        self._replicated = replicated
        self.replicated: tuple[int, ...] = ()
        """Of a complete save, as the header has it."""
        self._digest = xxhash.xxh3_128()
        self._digested = 0

    @property
    def nbytes(self) -> int:
        """Size of the shard file."""
        return len(self._slot.buf)

    def wait(self) -> None:
        """Return when tensors may change; on a GPU in the current streams, which wait for the copy."""
        self._waited = True
        self._transfer.wait()

    def finish(self) -> None:
        """Return when tensors may change in any stream: the copy has ended."""
        self._waited = True
        self._transfer.finish()

    def doubt(self) -> None:
        """Record that a step was made meanwhile: unless something waited for the copy before, it may be in the save."""
        self.doubted = self.doubted or (bool(self._names) and not self._waited)

    def abandon(self) -> None:
        """Give up a failed save: the shard stays incomplete, and tensors may change."""
        self._transfer.abandon()

    def run(self) -> bool:
        """Copy, take the digest, commit; False when the shard cannot be used because a tensor changed."""
        header = self._header()
        self._digested = header.payload_offset
        with memoryview(self._slot.buf) as view:
            self._update(view, header.meta_offset, header.meta_offset + header.meta_nbytes)
            self._transfer.run(lambda end: self._reached(view, end))
            self.torn = [self._names[number] for number in self._transfer.changed]
            if self.torn:
                return False
            self._reached(view, header.payload_offset + header.payload_nbytes)
        if self.doubted:
            return False
        self.replicated = tuple(self._hash(numbers) for numbers in self._replicated)
        results = {"digest": self._digest.hexdigest(), "replicated": self.replicated}
        header = header.model_copy(update=results)
        self._slot.seen.wrote(buffers.commit(self._slot.buf, header), header)
        return True

    def _hash(self, numbers: Sequence[int]) -> int:
        """Return a positive hash of some tensors of the shard; 0: of none."""
        found = xxhash.xxh3_64()
        for number in numbers:
            held = self._slot.targets[number].view
            if held.numel():
                found.update(bytes_of(held))
        return (found.intdigest() >> 2) + 1 if numbers else 0

    def _reached(self, view: memoryview, end: int) -> None:
        self._update(view, self._digested, end)
        self._digested = end

    def _update(self, view: memoryview, start: int, end: int) -> None:
        with view[start:end] as part:
            self._digest.update(part)


@dataclass
class ShardWriter:
    """Writes shards of one layout.

    A save is a copy of tensor bytes into their places; the file's structure is written once per slot.
    """

    layout: ShardLayout
    owner: Owner
    folder: Path
    _slots: dict[Path, _Slot] = field(default_factory=dict)
    _lane: DeviceLane | None = None

    def __post_init__(self) -> None:
        self._paths = [buffers.shard_path(self.folder, self.owner.rank, name) for name in buffers.SLOTS]
        self._collector = Collector(self.layout)
        self._tensor_items, self._object_items = self._collector.tensor_items, self._collector.object_items
        self._pieces: dict[str, list[int]] = {}
        for number, each in enumerate(self._tensor_items):
            self._pieces.setdefault(each.piece.fqn, []).append(number)
        for numbers in self._pieces.values():
            numbers.sort(key=lambda number: self._tensor_items[number].piece.start)
        self.payload_offset = align(HEADER_BYTES + len(self.layout.metadata), HEADER_BYTES)
        self.file_nbytes = self.payload_offset + self.layout.payload_nbytes

    def prepare(self, keeps: buffers.Saved | None = None, *, single: bool = False) -> None:
        """Map the slots that hold no shard to be kept, so that the first saves need not wait for their pages.

        Args:
            keeps: epoch and step of a shard that must stay; None: the newest.
            single: one slot is enough.

        Raises:
            CheckpointError: shared memory is full.
        """
        if single:
            path, other = buffers.only_slot(self.folder, self.owner.rank)
            if buffers.read_header(path) is None and buffers.read_header(other) is None:
                self._slot(path)
            return
        first = buffers.slot_to_overwrite(self.folder, self.owner.rank, keeps)
        for path in (first, self._other(first)):
            if path == first or buffers.read_header(path) is None:
                self._slot(path)

    def is_waiting_for_memory(self, keeps: buffers.Saved | None = None, *, in_place: bool = False) -> bool:
        """Return whether the next save's slot is lent, so that it needs a successor; there may be no memory for it."""
        return slot_files.is_lent(self._next(keeps, in_place=in_place))

    def _next(self, keeps: buffers.Saved | None, *, in_place: bool) -> Path:
        """Return the slot that the next save goes to."""
        if in_place:
            return buffers.only_slot(self.folder, self.owner.rank)[0]
        a, b = self._paths
        return a if buffers.overwrites_first(self._held(a), self._held(b), keeps) else b

    def _held(self, path: Path) -> ShardHeader | None:
        """Return the header of a slot, read from its mapping where there is one: that is the file at ``path``."""
        slot = self._slots.get(path)
        return slot.seen.header(slot.buf) if slot is not None else buffers.read_header(path)

    def _give_up_other(self, path: Path) -> None:
        """Give up the other slot: one is enough from now on; remove a file of another plan before its successor exists.

        Raises:
            CheckpointError: the slot is lent, and no room was reserved for another file.
        """
        if slot_files.is_lent(path) and not slot_files.is_reserved(path):
            raise CheckpointError(f"shard {path} is pinned, and a second copy is not allowed")
        other = self._other(path)
        self._slots.pop(other, None)
        other.unlink(missing_ok=True)
        if path.exists() and path.stat().st_size != self.file_nbytes:
            path.unlink()

    def collect(self, flat: Mapping[str, Any], fixed: Mapping[str, Any] | None = None) -> Contents | None:
        """Collect the parts of a state that are to be saved: see :meth:`.Collector.collect`."""
        return self._collector.collect(flat, fixed)

    def start(
        self,
        contents: Contents,
        step: int,
        steady: SteadyTensors = ALL_STEADY,
        *,
        number: int = 0,
        keeps: buffers.Saved | None = None,
        in_place: bool = False,
        replicated: Sequence[Sequence[str]] = (),
    ) -> Save:
        """Begin a save of ``step``: objects and what is not ``steady`` are copied at once.

        Args:
            contents: of the step.
            step: the last completed step.
            steady: which tensors may be copied later.
            number: of the call that saves.
            keeps: epoch and step of the shard that must stay, in whichever slot it is; None: the newest.
            in_place: all that this rank has may be overwritten: others have copies. One slot is used then.
            replicated: names of tensors that several ranks have and one saves, for each set of such ranks.

        Raises:
            CheckpointError: shared memory is full, or the only slot is lent; no shard is harmed.
        """
        path = self._next(keeps, in_place=in_place)
        if in_place:
            self._give_up_other(path)
        slot = self._slot(path)
        buffers.begin(slot.buf)
        prepared = slot.prepared
        if prepared is None or not prepared.holds(contents.tensors, steady):
            prepared = slot.prepared = Prepared(slot.targets, contents.tensors, steady)
        copy_all(*prepared.at_once(contents.tensors))
        for each, data in zip(self._object_items, contents.objects, strict=True):
            start = self.payload_offset + each.place.offset
            if slot.held.get(start) is not data:
                slot.buf[start : start + each.place.length] = data.ljust(each.place.length, b"\0")
                slot.held[start] = data
        if self._lane is None and prepared.route.on_device:
            self._lane = DeviceLane()
        pieces = [self._pieces_of(each) for each in replicated]
        transfer = Transfer(prepared.route, self._lane)
        header = partial(self._header, step, number, keeps)
        return Save(slot, header, step, transfer, pieces)

    def _pieces_of(self, names: Iterable[str]) -> list[int]:
        return [number for name in names for number in self._pieces.get(name, ())]

    def save(self, contents: Contents, step: int) -> Path:
        """Write one complete shard of ``step`` over the older one and return its path."""
        save = self.start(contents, step)
        save.run()
        return save.path

    def _other(self, path: Path) -> Path:
        a, b = self._paths
        return b if path == a else a

    def _slot(self, path: Path) -> _Slot:
        slot = self._slots.get(path)
        if slot is None or slot.buf.lock.is_shared(path):
            if slot is not None:
                slot.buf.unpin()
            buf = slot_files.create_locked(path, self.file_nbytes, self.owner.epoch)
            if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                pin(buf)
            buffers.begin(buf)
            slot = self._slots[path] = _Slot(path, buf, self._carve(buf))
        return slot

    def _carve(self, buf: mmap.mmap) -> list[CopyTarget]:
        """Write what stays the same in every save; return views of the places of the tensors' bytes."""
        buf[HEADER_BYTES : self.payload_offset] = self.layout.metadata.ljust(
            self.payload_offset - HEADER_BYTES, b"\0"
        )
        targets = []
        for each in self._tensor_items:
            form = zip_form(each.piece.shape, each.piece.dtype)
            start = self.payload_offset + each.place.offset
            data_at = start + len(form.head)
            data_end = data_at + form.data_nbytes
            buf[start:data_at] = form.head
            buf[data_end : data_end + len(form.tail)] = form.tail
            view = tensor_view(buf, data_at, each.piece.shape, each.piece.dtype)
            targets.append(CopyTarget(each.piece.fqn, view, data_at))
        return targets

    def _header(self, step: int, number: int, keeps: buffers.Saved | None) -> ShardHeader:
        return ShardHeader(
            job=self.owner.job,
            rank=self.owner.rank,
            step=step,
            epoch=self.owner.epoch,
            number=number,
            keeps=keeps,
            world_size=self.owner.world_size,
            plan=self.layout.plan,
            meta_offset=HEADER_BYTES,
            meta_nbytes=len(self.layout.metadata),
            payload_offset=self.payload_offset,
            owned_nbytes=self.layout.owned_nbytes,
            payload_nbytes=self.layout.payload_nbytes,
            file_nbytes=self.file_nbytes,
        )


def tensor_view(buf: mmap.mmap, offset: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return a tensor over bytes of ``buf``, without a copy."""
    nbytes = shape.numel() * dtype.itemsize
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype, device="cpu")
    raw = torch.frombuffer(buf, dtype=torch.uint8, count=nbytes, offset=offset)
    return raw.view(dtype).view(shape)
