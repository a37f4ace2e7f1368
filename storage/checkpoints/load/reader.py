"""Reads state back: from one rank's shard file, or from a stock checkpoint directory."""

from __future__ import annotations

import io
import mmap
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.foreign_metadata import load_foreign
from holdfast.storage.checkpoints.format.layout import Place, Placed
from holdfast.storage.checkpoints.format.safe_metadata import load_metadata
from holdfast.storage.checkpoints.load.exchange import Ballot, Exchange, first_line
from holdfast.storage.checkpoints.load.safe_load import SafeLoadPlanner
from holdfast.storage.checkpoints.remote.manifests import METADATA
from holdfast.storage.checkpoints.remote.remote_reader import RemoteReader
from holdfast.storage.checkpoints.save import buffers
from holdfast.storage.checkpoints.save.writer import tensor_view

_OF_DEVICES = (torch.OutOfMemoryError, torch.AcceleratorError)
"""A GPU fails, or is full: no other checkpoint would do better."""
Template = Callable[[Metadata], dict[str, Any]]
"""Given what a checkpoint holds, the nested dictionaries to load it into (tensors are filled in place)."""


def load(path: Path, template: Template, *, verified: bool = False) -> dict[str, Any]:
    """Load a shard file (this rank alone) or a checkpoint directory (collective) and return its state.

    Args:
        path: of the file or directory.
        template: what to load.
        verified: the caller has just read every byte of the shard and found it whole.

    Raises:
        UncoveredError: an element of the state is not in it; nothing was copied.
        CheckpointError: missing, torn, changed, or not made for such a state.
        RuntimeError: as torch raises it: the device failed, or has no memory left.
    """
    try:
        if not path.is_dir():
            return OwnShard(path, _alone(), verified=verified).load(template)
        reader = DirectoryReader(path)
        state = template(reader.read_metadata())
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*assuming the intent is to load in a single process")
            dcp_load(state, storage_reader=reader, planner=SafeLoadPlanner())
    except (CheckpointException, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        if isinstance(_cause(error), _OF_DEVICES):
            raise
        cause = _cause(error)
        kind = type(cause) if isinstance(cause, CheckpointError) else CheckpointError
        advice = (
            "A file of it is missing, cut off or cannot be read; restore another checkpoint."
            if isinstance(cause, OSError | EOFError)
            else "The state given to Session.restore() must have the names and shapes that were saved; restore an "
            "older checkpoint or an older code version."
        )
        raise kind(f"checkpoint {path}: {_first_line(error)}. {advice}") from error
    return state


class OwnShard:
    """This rank's shard file, which it loads when every rank that takes part in ``ballot`` can do so with its own."""

    def __init__(self, path: Path, ballot: Ballot, *, verified: bool = False) -> None:
        """Take the shard at ``path``; ``verified``: every byte of it has just been read and found whole."""
        self._path, self._ballot, self._verified = path, ballot, verified
        self._reader: ShardReader | None = None

    def load(self, template: Template) -> dict[str, Any]:
        """Load what the template makes. May be called again.

        Raises:
            UncoveredError: it does not have all that the rank needs, or another rank's does not; nothing was copied.
            CheckpointError: it is missing, torn, changed, or not made for such a state; or another rank's is.
        """
        self._reader = self._reader or ShardReader(self._path, verified=self._verified)
        return _load_when_all_can(self._reader, template, self._ballot)


def _load_when_all_can(
    reader: ShardReader | RemoteReader, template: Template, ballot: Ballot
) -> dict[str, Any]:
    state, planner, plan = plan_load(reader, template)
    if any(item.type is not LoadItemType.BYTE_IO for item in plan.items):
        ballot.cast()
    reader.read_data(plan, planner).wait()
    return state


def plan_load(reader: StorageReader, template: Template) -> tuple[dict[str, Any], SafeLoadPlanner, LoadPlan]:
    """Plan a load as ``torch.distributed.checkpoint.load`` does, without gathering all ranks' lists of items on one.

    Raises:
        UncoveredError: the reader lacks an element of the state.
        CheckpointError: it was made for another state.
    """
    metadata, planner = reader.read_metadata(), SafeLoadPlanner()
    state = template(metadata)
    planner.set_up_planner(state, metadata)
    plan = planner.finish_plan(reader.prepare_local_plan(planner.create_local_plan()))
    reader.set_up_storage_reader(metadata, is_coordinator=False)
    return state, planner, plan


def load_remote(reader: RemoteReader, template: Template, *, ballot: Ballot | None = None) -> dict[str, Any]:
    """Load a checkpoint in S3 and return its state. Collective, unless the reader was made for one rank.

    Args:
        reader: of the checkpoint.
        template: what to load.
        ballot: for a reader made for one rank, while the others load their shards.

    Raises:
        DamagedError: bytes are missing or not those that were saved.
        UncoveredError: an element of the state is not in it.
        CheckpointError: no such checkpoint, or not made for such a state.
        UnavailableError: S3 does not answer.
    """
    if ballot is not None:
        return _load_when_all_can(reader, template, ballot)
    reader.read_metadata()  # collective, and raises on all ranks or on none
    with reader.together():
        state, planner, plan = plan_load(reader, template)
    reader.read_data(plan, planner).wait()
    return state


def _alone() -> Ballot:
    return Ballot(Exchange(alone=True), "")


def _cause(error: BaseException) -> BaseException:
    """Return the root error behind torch's report of the ranks that failed."""
    if isinstance(error, CheckpointException) and error.failures:
        return next(iter(error.failures.values()))[0]
    return error


def _first_line(error: BaseException) -> str:
    if isinstance(error, CheckpointException) and error.failures:
        rank = next(iter(error.failures))
        return f"rank {rank}: {first_line(_cause(error))}"
    return first_line(error)


class DirectoryReader(FileSystemReader):
    """Stock, except that ``.metadata`` is read in bounds."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the checkpoint's metadata."""
        return load_foreign((Path(self.path) / METADATA).read_bytes(), f"checkpoint {self.path}")


class ShardReader(StorageReader):
    """A ``torch.distributed.checkpoint`` reader over one shard file. Its bytes are verified first.

    Tensors are read as views of the mapped file: the copy into the parameter is the only one.
    """

    def __init__(self, path: Path, *, verified: bool = False) -> None:
        """Open and verify the shard; ``verified``: the agent has just done so, and only the header is checked again."""
        self.path = path
        self.header = buffers.require_header(path) if verified else buffers.verify(path)
        with path.open("rb") as file:
            # A private mapping: tensors over it may be written to, the file never is.
            self._buf = mmap.mmap(file.fileno(), self.header.file_nbytes, access=mmap.ACCESS_COPY)
        self._places: dict[Any, Place] = {}
        self._metadata: Metadata | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: a reader is made for one file."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Metadata of this rank's items."""
        if self._metadata is None:
            start = self.header.meta_offset
            self._metadata = load_metadata(
                self._buf[start : start + self.header.meta_nbytes], f"shard {self.path}"
            )
        return self._metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Take the places of the items from the metadata."""
        self._metadata = metadata
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans unchanged."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy each item into its tensor, or unpickle it."""
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                self._read_object(item, planner)
            else:
                self._read_tensor(item, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read_object(self, item: ReadItem, planner: LoadPlanner) -> None:
        place = self._places[item.storage_index]
        start = self.header.payload_offset + place.offset
        planner.load_bytes(item, io.BytesIO(self._buf[start : start + place.length]))

    def _read_tensor(self, item: ReadItem, planner: LoadPlanner) -> None:
        assert self._metadata is not None
        known = self._metadata.state_dict_metadata[item.storage_index.fqn]
        assert isinstance(known, TensorStorageMetadata)
        chunk = next(chunk for chunk in known.chunks if chunk.offsets == item.storage_index.offset)
        data_at = self._places[item.storage_index].data_at
        assert data_at is not None
        saved = tensor_view(
            self._buf, self.header.payload_offset + data_at, chunk.sizes, known.properties.dtype
        )
        target = planner.resolve_tensor(item).detach()
        target.copy_(narrow_tensor_by_index(saved, item.storage_offsets, item.lengths))
        planner.commit_tensor(item, target)

    def part(self, placed: Placed, offsets: Sequence[int], lengths: Sequence[int]) -> Tensor | None:
        """Return the rows of a part of a box that lie in one piece of it, or the bytes of an object; None: no rows."""
        piece, place = placed.piece, placed.place
        if place.data_at is None:
            start = self.header.payload_offset + place.offset
            return torch.frombuffer(self._buf, dtype=torch.uint8, count=place.length, offset=start)
        view = tensor_view(self._buf, self.header.payload_offset + place.data_at, piece.shape, piece.dtype)
        if not lengths:
            return view
        low, high = max(offsets[0], piece.start), min(offsets[0] + lengths[0], piece.stop)
        if low >= high:
            return None
        begin, size = (low - piece.start, *offsets[1:]), (high - low, *lengths[1:])
        return narrow_tensor_by_index(view, begin, size)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """True for a shard file."""
        return Path(checkpoint_id).suffix == ".shard"
