"""Code of the job and state to resume from, brought to this machine before ranks are forked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.agent.checkpoints import shard_client
from holdfast.agent.checkpoints.memory import Memory, base_job
from holdfast.agent.checkpoints.transfer_process import TransferProcess
from holdfast.agent.client import AgentClient
from holdfast.agent.ranks.restored import Restored
from holdfast.errors import CheckpointError, DamagedError, HoldfastError, UnavailableError, UnknownError
from holdfast.models.agent import Start
from holdfast.models.checkpoint import RestoreOrder, Tier
from holdfast.secret import Keys, keys
from holdfast.storage.checkpoints.save import buffers
from holdfast.storage.code import versions
from holdfast.tls import PLAIN, Tls

_log = logging.getLogger(__name__)

_CHECKOUT_S = 50.0
Stamps = dict[str, tuple[int, int]]
"""Size and time of change of files, by name."""


class Staging:
    """Checkouts and shards, each fetched once however often it is asked for."""

    def __init__(
        self,
        carrier: TransferProcess,
        memory: Memory,
        folder: Path,
        secret: str | Keys,
        stores: Callable[[str], Mapping[str, str]],
        *,
        tls: Tls = PLAIN,
    ) -> None:
        """``stores`` returns the arguments with which ranks reach the store at a URL; empty: the site's own."""
        self._carrier = carrier
        self._stores = stores
        self._store = stores("")
        self._memory = memory
        self._folder = folder
        self._secret = keys(secret)
        self._tls = tls
        self._seen: dict[Path, Stamps] = {}
        """Of checkouts that were verified since this agent started."""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def code(self, job: str, version: str, neighbours: Sequence[str] = ()) -> Path:
        """Return the checkout of a code version, made if it is not there: from ``neighbours``, then from S3."""
        folder = self._checkout(job, version)
        async with self._locks[str(folder)]:
            if await asyncio.to_thread(self._is_whole, folder, version):
                return folder
            if not await self._from_neighbours(job, version, neighbours, folder):
                await self._carrier.call(
                    "checkout", _CHECKOUT_S, job=base_job(job), version=version, folder=str(folder)
                )
            if not await asyncio.to_thread(self._is_whole, folder, version):
                raise UnavailableError(f"code {folder} does not stay as it is written: see agent.log.")
        return folder

    def _is_whole(self, folder: Path, version: str) -> bool:
        """Return whether the checkout may be used; repair a broken one from the archive beside it.

        At first every byte is read: the machine may have lost its power. From then on it counts as whole while
        none of its files has another size or time.
        """
        if not folder.is_dir():
            return False
        known = self._seen.get(folder)
        if known is not None and _stamps(folder, known) == known:
            return True
        found = versions.look(version, folder)
        if found.broken:
            _log.warning("code %s is broken (%s): it is made again", folder, found.broken)
            if not versions.repair(version, folder):
                return False
            found = versions.look(version, folder)
        self._seen[folder] = _stamps(folder, found.names)
        return not found.broken

    def versions(self, job: str) -> tuple[str, ...]:
        """Return code versions of ``job`` that are checked out."""
        folder = self._checkout(job, "")
        return (
            tuple(sorted(each.name for each in folder.iterdir() if each.is_dir() and each.name[0] != "."))
            if folder.is_dir()
            else ()
        )

    async def archive(self, job: str, version: str) -> bytes:
        """Return the archive of a checkout, for other machines.

        Raises:
            UnknownError: it is not here.
        """
        try:
            return await asyncio.to_thread(versions.packed(self._checkout(job, version)).read_bytes)
        except OSError:
            raise UnknownError(f"code version {version!r} of job {job!r} is not on this machine") from None

    def _checkout(self, job: str, version: str) -> Path:
        return self._folder / "code" / base_job(job) / version

    async def _from_neighbours(self, job: str, version: str, neighbours: Sequence[str], folder: Path) -> bool:
        """Return whether one of the neighbours had it."""
        for address in neighbours:
            try:
                async with AgentClient(address, self._secret, tls=self._tls) as agent:
                    archive = await agent.code(base_job(job), version)
                await asyncio.to_thread(versions.place, archive, version, folder)
            except HoldfastError as error:
                _log.info("code %s from %s: %s", version, address, error)
            else:
                return True
        return False

    async def restored(self, start: Start, rank: int) -> Restored:
        """Return where a rank finds its state: the cheapest source that is whole. Fetch shards of other machines.

        Raises:
            CheckpointError: every source was refused; names them.
        """
        order = start.restore
        if start.replay is None:
            await self._let_end(start, rank)
        if (source := order.start_from) is not None:
            place = source.store_and_prefix
            store = self._store if place is None else self._stores(place[0])
            return Restored(order.step, "", start_from=source.model_dump(), store=store)
        assert order.tier is not None
        if order.tier is Tier.S3:
            return self._in_store(start, alone=False)
        if not order.saved_by:
            return await self._shard(start, _shard_of(start, rank))
        read = dict.fromkeys(each.rank for each in order.sources if each.read_by == rank)
        found = await asyncio.gather(*(self._shard(start, shard) for shard in read))
        store = self._store if order.key else {}
        return Restored(
            order.step,
            Tier.MEMORY.value,
            passed_over=tuple(each for one in found for each in one.passed_over),
            paths=tuple(each.path for each in found),
            epoch=order.epoch,
            key=order.key,
            job=base_job(start.job),
            store=store,
        )

    async def _let_end(self, start: Start, rank: int) -> None:
        """Wait for a transfer that an earlier start gave up, if one still writes a slot that ``rank`` will save to.

        What it brought is of no use where this start resumes from an older step.
        """
        job = base_job(start.job)
        slots = self._locks[f"shard {job} {rank}"]
        if not slots.locked():
            return
        async with slots:
            folder = self._memory.own(job)
            await asyncio.to_thread(buffers.discard_newer, folder, start.restore.step, rank)

    async def _shard(self, start: Start, shard: int) -> Restored:
        """Return where the shard that rank ``shard`` saved is, or a rank that resumes as ``shard`` finds its state."""
        refused: list[str] = []
        found = await self._from_sources(start, shard, refused)
        for each in refused:
            _log.warning("state of rank %d, not from the cheapest source: %s", shard, each)
        return replace(found, passed_over=tuple(refused))

    async def _from_sources(self, start: Start, shard: int, refused: list[str]) -> Restored:
        """Return what the first whole source gives; add to ``refused`` those before it.

        Raises:
            CheckpointError: there is none; names all.
        """
        order, job = start.restore, base_job(start.job)
        async with self._locks[f"shard {job} {shard}"]:
            lacking = ""
            try:
                return await self._here(job, shard, order, refused)
            except DamagedError:
                pass  # each is among the refused
            except CheckpointError as error:
                lacking = str(error)
            here = self._memory.machine
            planned = (each for each in (*order.sources, *order.fallbacks) if each.rank == shard)
            for source in (each for each in planned if each.machine != here):
                try:
                    if source.tier is Tier.S3:
                        return self._in_store(start, alone=True)
                    if source.address:
                        await self._pull(job, shard, start, source.address)
                        return await self._here(job, shard, order, refused)
                except (CheckpointError, UnavailableError) as error:
                    refused.append(
                        f"job {job!r} step {order.step} rank {shard} ({source.tier} of {source.machine}): {error}"
                    )
        raise CheckpointError("; ".join([lacking, *refused] if lacking else refused))

    async def _here(self, job: str, rank: int, order: RestoreOrder, damaged: list[str]) -> Restored:
        which = (job, rank, order.step, order.epoch)
        path, header = await asyncio.to_thread(self._memory.require_whole, *which, damaged)
        # A rank whose shard lacks something (its code has another layout now) may have to read the step from S3.
        store = self._store if order.key else {}
        return Restored(header.step, Tier.MEMORY.value, path=str(path), key=order.key, job=job, store=store)

    async def _pull(self, job: str, rank: int, start: Start, address: str) -> None:
        order = start.restore
        which: Any = {"job": job, "rank": rank, "step": order.step, "saved_by": order.epoch}
        pull = partial(
            shard_client.pull,
            address,
            self._secret.current,
            folder=self._memory.own(job),
            own_buffers=start.copies.own,
            tls=self._tls,
            **which,
        )
        try:
            await _to_its_end(pull)
        except CheckpointError:
            # Was it the network or the source? If the source, it discards its copy, and no plan names it again.
            await asyncio.to_thread(
                partial(shard_client.check, address, self._secret.current, tls=self._tls, **which)
            )
            raise

    def _in_store(self, start: Start, *, alone: bool) -> Restored:
        order = start.restore
        return Restored(
            order.step,
            Tier.S3.value,
            key=order.key,
            job=base_job(start.job),
            alone=alone,
            store=self._store,
        )


async def _to_its_end(work: Callable[[], object]) -> None:
    """Run ``work`` in a thread. When this is cancelled, return only when the thread has ended: it writes a slot.

    No other transfer may begin to write the same slot before.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        if not running.cancelled():
            running.exception()  # it is of no interest any more
        raise


def _stamps(folder: Path, names: Iterable[str]) -> Stamps:
    """Return the stamps of the files that are there."""
    found: Stamps = {}
    for name in names:
        with contextlib.suppress(OSError):
            at = os.lstat(os.path.join(folder, name))
            found[name] = (at.st_size, at.st_mtime_ns)
    return found


def _shard_of(start: Start, rank: int) -> int:
    """Return the rank whose shard ``rank`` resumes from.

    A replay renumbers ranks, so its i-th rank on this machine takes the i-th source.
    """
    if start.replay is None or not start.restore.sources:
        return rank
    sources = [source.rank for source in start.restore.sources]
    if len(sources) < len(start.ranks):
        raise CheckpointError(f"replay {start.job!r}: {len(sources)} sources for {len(start.ranks)} ranks")
    return sources[start.ranks.index(rank)]
