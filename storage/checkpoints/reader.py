"""Reads state back: from one rank's shard file, or from a stock checkpoint directory."""

from __future__ import annotations

import io
import mmap
import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints import buffers
from holdfast.storage.checkpoints.layout import Place
from holdfast.storage.checkpoints.remote_reader import RemoteReader, first_line
from holdfast.storage.checkpoints.safe_load import SafeLoadPlanner
from holdfast.storage.checkpoints.safe_metadata import load_metadata
from holdfast.storage.checkpoints.writer import tensor_view
from holdfast.storage.remote import METADATA

Template = Callable[[Metadata], dict[str, Any]]
"""Given what a checkpoint holds, the nested dictionaries to load it into (tensors are filled in place)."""


def load(path: Path, template: Template, *, verified: bool = False) -> dict[str, Any]:
    """Load a shard file (this rank alone) or a checkpoint directory (collective) and return its state.

    Raises:
        CheckpointError: missing, torn, changed, or without a key that the state has.
    """
    try:
        if not path.is_dir():
            return _load_own(ShardReader(path, verified=verified), template, nullcontext())
        reader = DirectoryReader(path)
        state = template(reader.read_metadata())
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*assuming the intent is to load in a single process")
            dcp_load(state, storage_reader=reader, planner=SafeLoadPlanner())
    except (CheckpointException, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise CheckpointError(
            f"checkpoint {path}: {_first_line(error)}. The state given to Session.restore() must have "
            "the names and shapes that were saved; restore an older checkpoint or an older code version."
        ) from error
    return state


def _load_own(
    reader: ShardReader | RemoteReader, template: Template, planning: AbstractContextManager[None]
) -> dict[str, Any]:
    """As ``torch.distributed.checkpoint.load``, without gathering every rank's list of items on one."""
    metadata, planner = reader.read_metadata(), SafeLoadPlanner()
    with planning:
        state = template(metadata)
        planner.set_up_planner(state, metadata)
        plan = planner.finish_plan(reader.prepare_local_plan(planner.create_local_plan()))
    reader.set_up_storage_reader(metadata, is_coordinator=False)
    reader.read_data(plan, planner).wait()
    return state


def load_remote(reader: RemoteReader, template: Template) -> dict[str, Any]:
    """Load a checkpoint in S3 and return its state. Collective, unless the reader was made for one rank.

    Raises:
        DamagedError: bytes are missing or not those that were saved.
        CheckpointError: no such checkpoint, or without a key that the state has.
        UnavailableError: S3 does not answer.
    """
    return _load_own(reader, template, reader.together())


def _first_line(error: BaseException) -> str:
    if isinstance(error, CheckpointException) and error.failures:
        rank, (cause, _) = next(iter(error.failures.items()))
        return f"rank {rank}: {cause}"
    return first_line(error)


class DirectoryReader(FileSystemReader):
    """Stock, except that ``.metadata`` is read with the restricted unpickler."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The checkpoint's metadata."""
        return load_metadata((Path(self.path) / METADATA).read_bytes(), f"checkpoint {self.path}")


class ShardReader(StorageReader):
    """A ``torch.distributed.checkpoint`` reader over one shard file. Its bytes are verified first.

    Tensors are read as views of the mapped file: the copy into the parameter is the only one.
    """

    def __init__(self, path: Path, *, verified: bool = False) -> None:
        """``verified``: the agent has just done so; the header alone is looked at again."""
        self.path = path
        self.header = buffers.require_header(path) if verified else buffers.verify(path)
        with path.open("rb") as file:
            # A private mapping: tensors over it may be written to, the file never is.
            self._buf = mmap.mmap(file.fileno(), self.header.file_nbytes, access=mmap.ACCESS_COPY)
        self._places: dict[Any, Place] = {}
        self._metadata: Metadata | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing to forget: a reader is made for one file."""

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
        """Nothing to add."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Nothing to add."""
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

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """True for a shard file."""
        return Path(checkpoint_id).suffix == ".shard"
