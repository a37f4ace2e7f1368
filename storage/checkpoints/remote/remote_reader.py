"""Loads a checkpoint from S3: only the bytes that the ranks need, each read once, in parallel.

A ``torch.distributed.checkpoint`` reader, so that the stock planner decides which boxes of which tensors a rank needs,
at whatever parallelism. Every range is verified by the digests of its blocks before it reaches a tensor.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xxhash
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from holdfast.errors import CheckpointError, DamagedError, HoldfastError, UnavailableError, UnknownError
from holdfast.models.base import Frozen
from holdfast.storage.checkpoints.format.blocks import Blocks
from holdfast.storage.checkpoints.format.boxes import Boxes
from holdfast.storage.checkpoints.format.compact import CompactMetadata
from holdfast.storage.checkpoints.format.safe_metadata import load_metadata
from holdfast.storage.checkpoints.load.exchange import FAILURES, Exchange, and_more, as_trouble, travels_as
from holdfast.storage.checkpoints.load.located import Located, Locator
from holdfast.storage.checkpoints.remote import manifests
from holdfast.storage.checkpoints.remote.boxes_reader import BoxesReader
from holdfast.storage.checkpoints.remote.manifests import BOXES, METADATA, Manifest, RemoteFile
from holdfast.storage.checkpoints.remote.read_orders import ReadOrders, deal
from holdfast.storage.checkpoints.remote.read_work import Round, Work
from holdfast.storage.objects.base import ObjectStore

_log = logging.getLogger(__name__)

THREADS = min(16, max(4, os.cpu_count() or 4))
"""Connections of a rank: S3 bounds each of them; a host with few cores gains nothing from more."""


GIVES_MANIFEST = "The manifest beside it can be read."
"""Ends the message about a file that alone cannot be read: a pattern of ``policies/rank_log.yaml`` looks for it."""


class LoadReport(Frozen):
    """The cost of a load. Bytes; the job's are sums over its ranks."""

    requests: int
    """GET requests of this rank."""
    read_nbytes: int
    """Read from S3 by this rank."""
    received_nbytes: int
    """Received from other ranks."""
    job_requests: int
    job_read_nbytes: int
    job_needed_nbytes: int
    """Bytes of the files that at least one rank needs."""
    seconds: float

    @property
    def amplification(self) -> float:
        """Bytes read over bytes needed, of the whole job."""
        return self.job_read_nbytes / max(1, self.job_needed_nbytes)


@travels_as("Opening")
@dataclass(frozen=True)
class FirstReads:
    """The result of rank 0's reads, for all ranks."""

    manifest: Manifest
    metadata: bytes
    """The stock form, or of the compact one what every rank needs."""
    compact: bool
    files: dict[str, RemoteFile]
    """Those that the metadata names, by name."""


class RemoteReader(StorageReader):
    """Reads one checkpoint of an object store. Collective, unless made for one rank ``alone``.

    Raises:
        DamagedError: bytes are missing or not those that were saved; names job, step and file.
        CheckpointError: there is no such checkpoint, or it is of another job or step.
        UnavailableError: the store does not answer.
    """

    def __init__(
        self, store: ObjectStore, key: str, *, job: str = "", step: int | None = None, alone: bool = False
    ) -> None:
        """Prepare for the checkpoint with prefix ``key``; ``job`` and ``step``, when given, must be its own."""
        self._store = store
        self._key = key
        self._expected = (job, step)
        self._exchange, self.alone = Exchange(alone=alone), alone
        self._opening: FirstReads | None = None
        self._metadata: Metadata | None = None
        self._counting = threading.Lock()
        self._counted = 0
        self.report: LoadReport | None = None

    @property
    def name(self) -> str:
        """For errors."""
        if self._opening is None:
            return f"checkpoint {self._key}"
        return f"job {self._opening.manifest.job!r} step {self._opening.manifest.step} in S3 ({self._key})"

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: a reader is made for one checkpoint."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return False: it takes a store and a prefix, not an id."""
        return False

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the checkpoint's metadata. Rank 0 reads and verifies it, all others get it from there.

        Where there is a compact form, that is its names; the boxes come when it is known what is loaded.
        """
        if self._opening is None:
            opening, error = (None, None) if self._exchange.rank else self._open()
            opening, error = self._exchange.broadcast((opening, error))
            if error is not None:
                raise error
            self._opening = opening
        if self._opening.compact:  # a new object: loads must not share what each fills in
            return self._compact(self._opening)
        self._metadata = self._metadata or self._stock(self._opening)
        return self._metadata

    def _compact(self, opening: FirstReads) -> Metadata:
        boxes = self._boxes(opening.manifest)
        assert boxes is not None
        names = [file.name for file in manifests.data_files(opening.manifest)]

        def stock() -> Metadata:
            return self._stock(FirstReads(opening.manifest, self._read_stock(opening.manifest), False, {}))

        return CompactMetadata(
            Boxes(opening.metadata, self.name), names, partial(boxes.fetch, opening.metadata), stock
        )

    def _stock(self, opening: FirstReads) -> Metadata:
        return load_metadata(opening.metadata, self.name)

    def _boxes(self, manifest: Manifest) -> BoxesReader | None:
        file = next((file for file in manifest.files if file.name == BOXES), None)
        if file is None:
            return None
        return BoxesReader(file, f"checkpoint {self._key}", self.get_range, self.read_blocks)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Take the places of the items from the metadata."""
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged: ranks agree on their reads when they begin to read."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans unchanged."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Agree on which rank reads what, read, pass on, and fill the planner's tensors."""
        begun = time.perf_counter()
        assert self._metadata is not None
        assert self._opening is not None
        locator = Locator(self._metadata, planner)
        with self.together():
            items = [locator.locate(item) for item in plan.items]
            self._require_inside(items)
        files = [self._opening.files[name] for name in sorted(self._opening.files)]
        number = {file.name: index for index, file in enumerate(files)}
        orders, needed = self._agree(items, files, number)
        work = Work(self, items, files, number, self._exchange.size)
        trouble: list[HoldfastError] = []
        with ThreadPoolExecutor(THREADS, thread_name_prefix="ranges") as pool:
            if self._turns(orders, work, pool, trouble):
                work.finish(trouble)
        self._raise_together(trouble)
        totals = self._exchange.sums([self._counted, work.read_nbytes])
        report = LoadReport(
            requests=self._counted,
            read_nbytes=work.read_nbytes,
            received_nbytes=work.received_nbytes,
            job_requests=totals[0],
            job_read_nbytes=totals[1],
            job_needed_nbytes=needed,
            seconds=time.perf_counter() - begun,
        )
        # Trees are read before and after the tensors, which are what a load costs.
        if self.report is None or report.job_read_nbytes >= self.report.job_read_nbytes:
            self.report = report
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around what may fail on one rank before a collective: then every rank raises, and none waits."""
        trouble: list[HoldfastError] = []
        try:
            yield
        except FAILURES as error:
            trouble.append(as_trouble(error, self.name))
        self._raise_together(trouble)

    def _require_inside(self, items: list[Located]) -> None:
        """Refuse items that lie beyond the ends of their files.

        Raises:
            DamagedError: a file is shorter than in the metadata; named.
        """
        assert self._opening is not None
        for each in items:
            there = self._opening.files[each.file].nbytes
            for span in each.spans:
                if not 0 <= span.start <= span.end <= there:
                    raise DamagedError(
                        f"{self.name}: {each.file} has {there} bytes, and {each.item.storage_index.fqn} should lie at "
                        f"{span.start} to {span.end}."
                    )

    def get_range(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes of a file of the checkpoint; counted."""
        self._count()
        with self._one_file():
            return self._store.get_range(manifests.object_key(self._key, name), start, end - start)

    def read_range(
        self, name: str, start: int, end: int, chunk_nbytes: int, take: Callable[[bytes], None]
    ) -> None:
        """Read bytes of a file of the checkpoint as they come; counted."""
        self._count()
        key = manifests.object_key(self._key, name)
        with self._one_file():
            self._store.read_range(key, start, end - start, chunk_nbytes, take)

    def read_blocks(self, file: RemoteFile) -> Blocks | None:
        """Return the digests of the blocks of a file; counted."""
        self._count()
        with self._one_file():
            return manifests.read_blocks(self._store, self._key, file)

    @contextmanager
    def _one_file(self) -> Iterator[None]:
        """Around a request for one file: a file that the store keeps back is no store that is away or refuses all.

        Raises:
            UnavailableError: with :data:`GIVES_MANIFEST` where only that file does not come.
        """
        try:
            yield
        except UnavailableError as error:
            if self._gives_manifest():
                raise UnavailableError(f"{error} {GIVES_MANIFEST}") from error
            raise

    def _gives_manifest(self) -> bool:
        try:
            manifests.read_manifest(self._store, self._key)
        except HoldfastError:
            return False
        return True

    def _count(self) -> None:
        with self._counting:
            self._counted += 1

    def _open(self) -> tuple[FirstReads | None, HoldfastError | None]:
        try:
            manifest = manifests.read_manifest(self._store, self._key)
            _check_owner(manifest, self._key, *self._expected)
            if (leading := self._open_boxes(manifest)) is not None:
                files = {file.name: file for file in manifests.data_files(manifest)}
                return FirstReads(manifest, leading, True, files), None
            metadata = self._read_stock(manifest)
            listed = {file.name: file for file in manifest.files}
            paths = {info.relative_path for info in load_metadata(metadata, self._key).storage_data.values()}
            if missing := sorted(paths - listed.keys()):
                raise DamagedError(f"checkpoint {self._key}: its manifest does not list {missing[0]}.")
            return FirstReads(manifest, metadata, False, {name: listed[name] for name in paths}), None
        except UnknownError as error:
            return None, DamagedError(f"checkpoint {self._key}: {error}")
        except FAILURES as error:  # whatever it is: the other ranks wait for an answer
            return None, as_trouble(error, self.name)

    def _open_boxes(self, manifest: Manifest) -> bytes | None:
        """Read the part of the compact metadata that every rank needs; None: there is none, or it is damaged."""
        if (boxes := self._boxes(manifest)) is None:
            return None
        try:
            leading = boxes.leading()
            if (count := Boxes(leading).files) != len(manifests.data_files(manifest)):
                raise DamagedError(f"{BOXES} is of {count} files, the manifest of another number")
        except DamagedError as error:
            _log.warning("checkpoint %s: %s is read instead: %s", self._key, METADATA, error)
            return None
        return leading

    def _read_stock(self, manifest: Manifest) -> bytes:
        self._count()
        with self._one_file():
            metadata = self._store.get(manifests.object_key(self._key, METADATA))
        known = next((file for file in manifest.files if file.name == METADATA), None)
        if known is None or known.digest != xxhash.xxh3_128_hexdigest(metadata):
            raise DamagedError(
                f"job {manifest.job!r} step {manifest.step} in S3: {METADATA} is not what its manifest "
                "says: it is damaged or of another checkpoint."
            )
        return metadata

    def _agree(
        self, items: list[Located], files: list[RemoteFile], number: dict[str, int]
    ) -> tuple[ReadOrders, int]:
        """Send rank 0 what this rank needs; return what this rank is to read, and how much the job needs."""
        rows = [(number[each.file], span.start, span.end) for each in items for span in each.spans]
        table = np.array([row for row in rows if row[2] > row[1]], np.int64).reshape(-1, 3)
        tables = self._exchange.gather(table)
        orders: list[tuple[ReadOrders, int]] | None = None
        if tables is not None:
            orders = deal(tables, files, self._exchange.size)
        mine: tuple[ReadOrders, int] = self._exchange.scatter(orders)
        return mine

    def _turns(
        self, orders: ReadOrders, work: Work, pool: ThreadPoolExecutor, trouble: list[HoldfastError]
    ) -> bool:
        """Round by round: read ahead, pass on what others need, take what they read; whether all came."""
        ahead = {turn: work.submit(pool, orders, turn) for turn in range(min(2, orders.turns))}
        for turn in range(orders.turns):
            done = ahead.pop(turn)
            _wait(done, trouble, self.name)
            if self._exchange.any(bool(trouble)) if orders.exchange else trouble:
                return False
            for piece in done.pieces:
                work.arrived(*piece)
            if turn + 2 < orders.turns:
                ahead[turn + 2] = work.submit(pool, orders, turn + 2)
            if orders.exchange:
                self._pass_on(orders, turn, done, work)
        return True

    def _pass_on(self, orders: ReadOrders, turn: int, done: Round, work: Work) -> None:
        coming = orders.coming[orders.coming[:, 3] == turn]
        coming = coming[np.argsort(coming[:, 4], kind="stable")]
        receives = np.bincount(
            coming[:, 4], weights=coming[:, 2] - coming[:, 1], minlength=self._exchange.size
        )
        incoming = work.buffer("incoming", int(receives.sum()))
        self._exchange.swap(done.outgoing, done.counts, incoming, [int(each) for each in receives])
        got, at = incoming.numpy(), 0
        for file, start, end, _, _ in coming.tolist():
            work.place(file, start, got[at : at + end - start])
            work.arrived(file, start, end)
            at += end - start
        work.received_nbytes += at

    def _raise_together(self, trouble: list[HoldfastError]) -> None:
        """Raise on every rank when any rank failed, with the same message."""
        if not self._exchange.any(bool(trouble)):
            return
        failures = [each for each in self._exchange.everywhere(trouble[0] if trouble else None) if each]
        first: HoldfastError = next(
            (each for each in failures if isinstance(each, DamagedError)), failures[0]
        )
        raise type(first)(f"{first}{and_more(failures)}") from (trouble[0] if trouble else None)


def _check_owner(manifest: Manifest, key: str, job: str, step: int | None) -> None:
    if job and manifest.job != job:
        raise CheckpointError(f"checkpoint {key} is of job {manifest.job!r}, expected {job!r}: not restored.")
    if step is not None and manifest.step != step:
        raise CheckpointError(f"checkpoint {key} is of step {manifest.step}, expected {step}: not restored.")


def _wait(reading: Round, trouble: list[HoldfastError], name: str) -> None:
    for read in reading.reads:
        try:
            read.result()
        except FAILURES as error:
            trouble.append(as_trouble(error, name))
