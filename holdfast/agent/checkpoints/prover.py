"""Proves single shards and checkpoints in a separate process, one at a time on a machine."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.metrics import Metrics
from holdfast.agent.ranks.forkserver import ForkServer
from holdfast.agent.ranks.processes import Watched
from holdfast.agent.ranks.rank_main import run_named
from holdfast.errors import CheckpointError, UnavailableError
from holdfast.models.checkpoint import Tier
from holdfast.models.rehearsal import Proof, Rehearsal
from holdfast.models.replica import StateDigests
from holdfast.settings import Settings
from holdfast.shown import size
from holdfast.storage.checkpoints.save import buffers, room, slot_files

Outcome = TypeVar("Outcome", bound=BaseModel)

_MODULE = "holdfast.agent.checkpoints.prove_main"
_LEAST_S, _BYTES_PER_S = 120.0, 50e6
"""A proof is given up after this long, and one second more per so many bytes: it has the lowest priority."""
_REMOTE_S = 1800.0
_TRIES = 3
_WRITING_S, _LOOK_S = 30.0, 0.01
"""A rank with a single buffer writes over it step by step: how long to look for a moment when it is complete."""


@dataclass(frozen=True)
class _Held:
    """A shard to be proven."""

    path: Path
    header: buffers.ShardHeader
    name: Path | None = None
    """Under which it is lent, if it is."""

    @property
    def bytes_at(self) -> Path:
        return self.name or self.path


class Prover:
    """Proves what lies on this machine, or in S3. Used on the event loop.

    The rank's own shard is proven and not the peer's copy of it: it is what a restore takes first, it is there for jobs
    without a peer as well, and a copy was compared with its digest when it came. So that the next saves are not
    disturbed and do not disturb, the file is lent as to an upload, which costs the memory of one more file until it is
    given back. Where there is no room for that and for the uploads of all ranks, it is read where it lies: the newest
    complete slot is the last to be overwritten, and a proof of one that was overwritten meanwhile does not count. The
    rank's only buffer is lent in any case: its saves are left out until it is proven.
    """

    def __init__(
        self, forks: ForkServer, memory: Memory, settings: Settings, metrics: Metrics, machine: str
    ) -> None:
        self._forks = forks
        self._memory = memory
        self._settings = settings
        self._metrics = metrics
        self._machine = machine
        self._turn = asyncio.Lock()

    @property
    def why_not(self) -> str:
        """Why nothing can be proven on this machine; empty when it can."""
        loaded = {name.strip() for name in self._settings.preload.split(",")}
        return "" if "torch" in loaded else "this machine's fork server has no torch (HOLDFAST_PRELOAD)"

    def ranks(self, job: str, tier: Tier) -> list[int]:
        """Return the ranks whose shards of ``job`` lie in ``tier`` here."""
        return sorted({header.rank for _, header in buffers.inventory(self._memory.folder(tier, job))})

    async def shard(
        self, job: str, rank: int, tier: Tier = Tier.MEMORY, allowed: Collection[str] | None = None
    ) -> Rehearsal:
        """Prove the newest shard of ``rank`` that lies in ``tier`` here."""
        folder = self._memory.folder(tier, job)
        known: dict[str, Any] = {"job": job, "rank": rank, "machine": self._machine, "tier": tier}
        if self.why_not:
            return self._result(Rehearsal(**known, why_not=self.why_not, at=time.time()))
        why = "no complete shard of it lies here"
        async with self._turn:
            for _ in range(_TRIES):
                try:
                    held = await self._hold(folder, rank)
                except CheckpointError as error:
                    why = str(error)
                    break
                if held is None:
                    break
                header = held.header
                known |= {"step": header.step, "epoch": header.epoch, "plan": header.plan}
                try:
                    proof = await self._prove_still(held, allowed)
                except UnavailableError as error:
                    why = str(error)
                    continue
                if proof is not None:
                    return self._result(Rehearsal(**known, proof=proof, at=time.time()))
                why = f"shared memory has no room to hold it still ({size(header.file_nbytes)}), and the "
                why += "next saves overwrote it while it was read"
        return self._result(Rehearsal(**known, why_not=why, at=time.time()))

    async def checkpoint(
        self, job: str, step: int, epoch: int, key: str, allowed: Collection[str] | None = None
    ) -> Rehearsal:
        """Prove the checkpoint in S3 with prefix ``key``."""
        known: dict[str, Any] = {"job": job, "step": step, "epoch": epoch, "machine": self._machine}
        known |= {"tier": Tier.S3}
        why, proof = self.why_not, None
        if not why:
            async with self._turn:
                try:
                    proof = await self._run(
                        Proof, "prove_checkpoint", _REMOTE_S, _named(allowed), self._settings, key
                    )
                except UnavailableError as error:
                    why = str(error)
        return self._result(Rehearsal(**known, proof=proof, why_not=why, at=time.time()))

    async def digests(self, step: int, shards: Mapping[int, Path], *, lend: bool) -> StateDigests | None:
        """Return digests of what the shards of ``step`` hold, by rank; None when a later save overwrote one meanwhile.

        The shards are read where they lie, which costs training nothing; ``lend``: where there is room they are held
        still, as for a proof.

        Raises:
            UnavailableError: the process gave no result.
        """
        async with self._turn:
            held = await asyncio.to_thread(self._hold_all, step, shards, lend=lend)
            try:
                if held is None:
                    return None
                limit_s = _LEAST_S + sum(each.header.file_nbytes for each in held.values()) / _BYTES_PER_S
                files = {rank: each.bytes_at for rank, each in held.items()}
                found = await self._run(StateDigests, "digest_shards", limit_s, step, files)
                same = await asyncio.to_thread(_unchanged, held.values())
                return found if same else None
            finally:
                await asyncio.to_thread(_release, (held or {}).values())

    def _hold_all(self, step: int, shards: Mapping[int, Path], *, lend: bool) -> dict[int, _Held] | None:
        held: dict[int, _Held] = {}
        for rank, path in shards.items():
            header = buffers.read_header(path)
            if header is None or header.step != step:
                _release(held.values())
                return None
            held[rank] = self._lent(path, header, "digest") if lend else _Held(path, header)
        return held

    def _lent(self, path: Path, header: buffers.ShardHeader, what: str) -> _Held:
        """Lend the shard under a name of its own, if there is room and another buffer; else use it where it lies."""
        if self._memory.is_single(path) or not self._has_room(path, header):
            return _Held(path, header)
        name = self._loan(path, what)
        try:
            slot_files.lend(path, header.step, name)
        except CheckpointError:
            return _Held(path, header)
        _reserve(path, header.file_nbytes)
        return _Held(path, header, name)

    def _loan(self, path: Path, what: str) -> Path:
        folder = path.parent
        return self._memory.transfers_beside(path) / f"{what}-{folder.parent.name}-{folder.name}-{path.name}"

    async def _hold(self, folder: Path, rank: int) -> _Held | None:
        """Hold the newest shard of ``rank`` in ``folder``, lent where possible; return None when there is none."""
        deadline = time.monotonic() + _WRITING_S
        while (held := await asyncio.to_thread(self._lend_newest, folder, rank)) is None:
            if time.monotonic() > deadline or not any(folder.glob(f"r{rank}-?.shard")):
                return None
            await asyncio.sleep(_LOOK_S)
        return held

    def _lend_newest(self, folder: Path, rank: int) -> _Held | None:
        """Return None when no shard is complete at this moment, or it was overwritten before it could be lent.

        Raises:
            CheckpointError: it cannot be lent.
        """
        found = _newest(folder, rank)
        if found is None:
            return None
        path, header = found
        has_room = self._has_room(path, header)
        if not has_room and not self._memory.is_single(path):
            return _Held(path, header)
        name = self._loan(path, "proof")
        try:
            slot_files.lend(path, header.step, name)
        except CheckpointError:
            if buffers.read_header(path) == header:
                raise
            return None
        if has_room:
            _reserve(path, header.file_nbytes)
        return _Held(path, header, name)

    async def _prove_still(self, held: _Held, allowed: Collection[str] | None) -> Proof | None:
        """Return the proof; None when the file was overwritten during it. A loan ends.

        Raises:
            UnavailableError: the process gave no result.
        """
        try:
            limit_s = _LEAST_S + held.header.file_nbytes / _BYTES_PER_S
            proof = await self._run(Proof, "prove_shard", limit_s, _named(allowed), held.bytes_at)
            still = await asyncio.to_thread(buffers.read_header, held.bytes_at)
            return proof if still == held.header else None
        finally:
            await asyncio.to_thread(_release, [held])

    def _has_room(self, path: Path, header: buffers.ShardHeader) -> bool:
        """Check for room for one more file, beside the uploads of all ranks."""
        ranks = {buffers.rank_of(each) for each in path.parent.glob("r*-?.shard")}
        return room.free_nbytes(path.parent) >= (1 + len(ranks)) * header.file_nbytes

    async def _run(self, outcome_of: type[Outcome], what: str, limit_s: float, *args: Any) -> Outcome:
        folder = Path(tempfile.mkdtemp(prefix="holdfast-proof-"))
        outcome = folder / "proof"
        try:
            # Not a spare process: those are for recoveries.
            forked = await self._forks.fork_soon(run_named, (_MODULE, what, outcome, *args))
            process = Watched(forked, -1)
            try:
                code = await asyncio.wait_for(asyncio.shield(process.gone), limit_s)
            except TimeoutError:
                raise UnavailableError(f"not proven within {limit_s:.0f} s") from None
            finally:
                if not process.gone.done():
                    process.kill()
            return _read(outcome_of, outcome, code)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _result(self, found: Rehearsal) -> Rehearsal:
        self._metrics.rehearsals.labels(found.outcome.value).inc()
        if found.proof is not None:
            self._metrics.rehearsal_seconds.observe(found.proof.seconds)
        return found


def _newest(folder: Path, rank: int) -> tuple[Path, buffers.ShardHeader] | None:
    held = [(path, header) for path, header in buffers.inventory(folder) if header.rank == rank]
    return max(held, key=lambda each: (each[1].epoch, each[1].step), default=None)


def _unchanged(held: Iterable[_Held]) -> bool:
    return all(buffers.read_header(each.bytes_at) == each.header for each in held)


def _release(held: Iterable[_Held]) -> None:
    for each in held:
        if each.name is not None:
            slot_files.release(each.path, each.name)


def _reserve(path: Path, nbytes: int) -> None:
    try:
        slot_files.reserve(path, nbytes)
    except CheckpointError:
        # The next save takes the time to find memory, as it would without.
        return


def _named(allowed: Collection[str] | None) -> tuple[str, ...] | None:
    return None if allowed is None else tuple(allowed)


def _read(outcome_of: type[Outcome], outcome: Path, code: int) -> Outcome:
    try:
        return outcome_of.model_validate_json(outcome.read_text())
    except (OSError, ValidationError):
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        raise UnavailableError(f"the process that proves it came to no result ({how})") from None
