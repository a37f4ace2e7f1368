"""Loads state from the shard files of all ranks, when a rank's own does not have what the rank needs now.

That is so after the layout changed at the same number of ranks (saved as FSDP2, restored as tensor parallel), and after
the number of ranks changed: then a rank may hold the files of several ranks that saved, or none. All files together
have all of the state; each rank announces what it holds, works out what it needs and from which rank, and the bytes
travel over the process group. A rank reads what it has itself from its own files.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from holdfast.storage.checkpoints.format.layout import Placed
from holdfast.storage.checkpoints.load import held
from holdfast.storage.checkpoints.load.exchange import Exchange, as_trouble
from holdfast.storage.checkpoints.load.reader import ShardReader, Template, plan_load

ROUND_NBYTES = 128 << 20
"""Bytes that a rank sends in one round, and that it receives."""

_LEAST_NBYTES = 64 << 10
"""To one rank in one round: below, rounds would be many and empty."""


class RanksReader(StorageReader):
    """Reads what all ranks hold, as one checkpoint. Every method that reads is collective.

    Raises:
        DamagedError: a shard's bytes are not those that were saved; on every rank.
        CheckpointError: the shards are not of one save; on every rank.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        exchange: Exchange,
        *,
        verified: bool = False,
        round_nbytes: int = ROUND_NBYTES,
    ) -> None:
        """Prepare for the shard files at ``paths``; none: this rank only receives. Collective.

        ``verified``: the agent has just read them and found them whole.
        """
        self._exchange = exchange
        self._most = max(_LEAST_NBYTES, round_nbytes // exchange.size)
        self._pieces: list[tuple[ShardReader, list[Placed]]] = []
        self._entries: Sequence[held.HeldEntry] = ()
        own: held.Inventory | None = None
        with exchange.together(f"shard {', '.join(map(str, paths)) or 'of another rank'}"):
            stocks = []
            for path in paths:
                shard = ShardReader(path, verified=verified)
                stock, pieces = held.take_stock(shard.header, shard.read_metadata())
                stocks.append(stock)
                self._pieces += [(shard, each) for each in pieces]
            if stocks:
                own = held.combined(stocks)
                self._entries = own.entries
        inventories = [held.unpack(each) for each in exchange.everywhere(held.pack(own))]
        with exchange.together("the ranks' shards"):
            self._stock = held.Stock(inventories)
        self._metadata = self._stock.metadata()
        self.received_nbytes = 0

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: a reader is made for one save."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return False: it takes a rank's shard file, not an id of a checkpoint."""
        return False

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata of what all ranks hold together."""
        return self._metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Do nothing: nothing is needed from it."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged: ranks exchange what they need when they begin to read."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans unchanged."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Ask each holder for what this rank needs, hand out what others ask for, and fill the planner's tensors."""
        mine, orders = self._orders(plan.items)
        asked = [
            [(each.place, each.item.storage_offsets, each.item.lengths) for each in some] for some in orders
        ]
        requests = [held.unpack(each) for each in self._exchange.deal([held.pack(each) for each in asked])]
        with self._exchange.together(self.name):
            for each in mine:
                _fill(
                    each.item, planner, self._parts(each.place, each.item.storage_offsets, each.item.lengths)
                )
        arrivals = [_Incoming(some, self._stock, planner) for some in orders]
        with self._exchange.together(self.name):
            self._pass_on([self._outgoing(each) for each in requests], arrivals)
        self.received_nbytes += sum(each.nbytes for each in arrivals)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @property
    def name(self) -> str:
        """For errors."""
        return f"step {self._stock.saved.step} of job {self._stock.saved.job!r} in the ranks' shards"

    def _orders(self, items: Sequence[ReadItem]) -> tuple[list[_Order], list[list[_Order]]]:
        """Return what this rank takes from its own file, and what from each rank."""
        mine: list[_Order] = []
        orders: list[list[_Order]] = [[] for _ in range(self._exchange.size)]
        for item in items:
            rank, place = self._stock.source(item.storage_index, self._exchange.rank)
            nbytes = self._stock.nbytes((rank, place), item.lengths)
            (mine if rank == self._exchange.rank else orders[rank]).append(_Order(place, item, nbytes))
        return mine, orders

    def _parts(self, place: int, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[Tensor]:
        """Yield a part of a box in a file of this rank, row by row as its pieces lie; or the bytes of an object."""
        shard, pieces = self._pieces[place]
        for placed in pieces:
            if (found := shard.part(placed, offsets, lengths)) is not None:
                yield found

    def _outgoing(self, request: Sequence[tuple[int, Sequence[int], Sequence[int]]]) -> _Outgoing:
        entries = self._entries
        nbytes = sum(entries[place].nbytes(lengths) for place, _, lengths in request)
        return _Outgoing((part for each in request for part in self._parts(*each)), nbytes)

    def _pass_on(self, outgoing: Sequence[_Outgoing], incoming: Sequence[_Incoming]) -> None:
        """Send and receive, up to a fixed number of bytes to and from each rank in a round."""
        most = max(0, *(each.left for each in outgoing), *(each.left for each in incoming))
        for _ in range(-(-self._exchange.largest(most) // self._most)):
            counts = [min(self._most, each.left) for each in outgoing]
            receives = [min(self._most, each.left) for each in incoming]
            sent = torch.empty(sum(counts), dtype=torch.uint8, device="cpu")
            for each, room in zip(outgoing, torch.split(sent, counts), strict=True):
                each.give(room)
            got = torch.empty(sum(receives), dtype=torch.uint8, device="cpu")
            self._exchange.swap(sent, counts, got, receives)
            for taking, piece in zip(incoming, torch.split(got, receives), strict=True):
                taking.take(piece)
        troubles = [*(each.trouble for each in outgoing), *(each.trouble for each in incoming)]
        if (first := next((each for each in troubles if each is not None), None)) is not None:
            raise as_trouble(first, self.name) from first


@dataclass(frozen=True)
class _Order:
    """One thing that a rank takes from a file: what, for which item of its plan, and how many bytes."""

    place: int
    item: ReadItem
    nbytes: int


class _Outgoing:
    """Bytes for one rank, made as they are sent."""

    def __init__(self, parts: Iterator[Tensor], nbytes: int) -> None:
        self._parts = parts
        self._now = torch.empty(0, dtype=torch.uint8, device="cpu")
        self.left = nbytes
        self.trouble: Exception | None = None
        """The error of a byte that could not be read; the exchange itself goes on meanwhile, so that no rank waits."""

    def give(self, room: Tensor) -> None:
        """Fill ``room`` with the next bytes; with zeros, from the first one on that could not be read."""
        self.left -= len(room)
        if self.trouble is None:
            try:
                self._fill(room)
            except Exception as error:  # whatever it is: the exchange goes on first
                self.trouble = error
        if self.trouble is not None:
            room.zero_()

    def _fill(self, room: Tensor) -> None:
        while len(room):
            if not len(self._now):
                self._now = next(self._parts).contiguous().reshape(-1).view(torch.uint8)
            count = min(len(room), len(self._now))
            room[:count] = self._now[:count]
            room, self._now = room[count:], self._now[count:]


class _Incoming:
    """Bytes from one rank, which become tensors as soon as one is complete."""

    def __init__(self, orders: Sequence[_Order], stock: held.Stock, planner: LoadPlanner) -> None:
        self._orders = iter(orders)
        self._stock, self._planner = stock, planner
        self._now: _Order | None = None
        self._bytes = self._room = torch.empty(0, dtype=torch.uint8, device="cpu")
        self.trouble: Exception | None = None
        """The error of an item that could not be taken; the exchange goes on."""
        self.nbytes = self.left = sum(each.nbytes for each in orders)

    def take(self, piece: Tensor) -> None:
        """Take the next bytes."""
        self.left -= len(piece)
        while len(piece):
            while self._now is None or not self._now.nbytes:
                self._now = next(self._orders)
                self._bytes = self._room = torch.empty(self._now.nbytes, dtype=torch.uint8, device="cpu")
            count = min(len(piece), len(self._room))
            self._room[:count] = piece[:count]
            piece, self._room = piece[count:], self._room[count:]
            if not len(self._room):
                self._finish(self._now.item)
                self._now = None

    def _finish(self, item: ReadItem) -> None:
        try:
            whole = self._bytes
            if item.type is not LoadItemType.BYTE_IO:
                whole = whole.view(self._stock.dtype(item.storage_index.fqn)).view(tuple(item.lengths))
            _fill(item, self._planner, iter([whole]))
        except Exception as error:  # whatever it is: the exchange goes on first
            self.trouble = self.trouble or error


def _fill(item: ReadItem, planner: LoadPlanner, parts: Iterator[Tensor]) -> None:
    """Put the rows of an item, or the bytes of an object, where the planner wants them."""
    if item.type is LoadItemType.BYTE_IO:
        planner.load_bytes(item, io.BytesIO(b"".join(bytes(each.numpy()) for each in parts)))
        return
    target = planner.resolve_tensor(item).detach()
    at = 0
    for part in parts:
        if part.dim():
            target[at : at + len(part)].copy_(part)
            at += len(part)
        else:
            target.copy_(part)
    planner.commit_tensor(item, target)


def load_from_ranks(reader: RanksReader, template: Template, exchange: Exchange) -> dict[str, Any]:
    """Load what all ranks hold together. Collective.

    Raises:
        UncoveredError: an element that some rank needs is in no rank's shard; nothing was copied.
        CheckpointError: it was not made for such a state.
    """
    with exchange.together(reader.name):
        state, planner, plan = plan_load(reader, template)
    reader.read_data(plan, planner).wait()
    return state
