"""Source of a rank's state: its own shard, all ranks' shards, or S3; the same kind on all ranks.

A rank's own shard is enough as long as the rank needs what it had. When any rank finds, before it copies a byte, that
its own lacks something (the code was updated to another layout), all ranks load from each other's shards of the same
step; when some rank has none, or that does not do either, all read the step from S3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.errors import UncoveredError
from holdfast.session.restore import State, restore_remote, restore_with
from holdfast.storage.checkpoints.load import reader
from holdfast.storage.checkpoints.load.exchange import Ballot, Exchange
from holdfast.storage.checkpoints.load.from_ranks import RanksReader, load_from_ranks
from holdfast.storage.checkpoints.load.reader import OwnShard
from holdfast.storage.checkpoints.remote.remote_reader import LoadReport, RemoteReader
from holdfast.storage.checkpoints.save import buffers

Remote = Callable[[bool], RemoteReader]
"""Opens the checkpoint of the step in S3: for this rank alone, or for all together."""


@dataclass(frozen=True)
class Recovered:
    """The result of a restore."""

    shard: Path | None = None
    """The file that gave all of the rank's state; None: others gave some of it."""
    cost: dict[str, Any] = field(default_factory=dict)
    """Cost of the bytes that came from elsewhere."""


def recover(
    state: State, rank: int, path: Path | None, *, verified: bool = False, remote: Remote | None = None
) -> Recovered:
    """Load ``state`` of one step, of which each rank has a shard or reads S3. Collective.

    Args:
        state: name to module, optimizer or other ``Stateful``; or the tree over them.
        rank: the rank that the state belongs to.
        path: the rank's shard file; None: no machine has it, and the rank reads S3.
        verified: every byte of the file has just been read and found whole.
        remote: the same step in S3, if it is there.

    Raises:
        UncoveredError: an element of the state is nowhere; no tensor of any rank was touched.
        CheckpointError: a checkpoint is damaged or missing, or does not fit ``state``; on every rank.
        UnavailableError: S3 does not answer.
    """
    exchange = Exchange(alone=False)
    ballot = Ballot(exchange, f"shard {path}" if path else "S3")
    try:
        with ballot.open():
            if path is None:
                return _alone_from_s3(state, rank, remote, ballot)
            restore_with(OwnShard(path, ballot, verified=verified).load, state, rank, own=True)
            return Recovered(path)
    except UncoveredError as error:  # on every rank
        lacking = error
    if exchange.size > 1 and not exchange.any(path is None):
        try:
            return _from_ranks(state, rank, [path] if path else [], exchange)
        except UncoveredError as error:
            lacking = error
    _require_in_s3(remote, exchange, lacking, _why_not(path, exchange))
    return _together_from_s3(state, rank, remote)


def recover_from_ranks(
    state: State, rank: int, paths: Sequence[Path], *, remote: Remote | None = None
) -> Recovered:
    """Load ``state`` of a step that another number of ranks saved, from their shards, which lie with these ranks.

    Collective, and over the process group: the script must have made it.

    Args:
        state: as in :func:`recover`.
        rank: this one, as it is numbered now.
        paths: verified shards of the ranks that saved, which this rank reads for all; may be none.
        remote: the same step in S3, if it is there.

    Raises:
        UncoveredError: an element of the state is nowhere; no tensor of any rank was touched.
        CheckpointError: the shards are damaged or do not fit ``state``; on every rank.
        UnavailableError: S3 does not answer.
    """
    exchange = Exchange(alone=False)
    try:
        return _from_ranks(state, rank, paths, exchange)
    except UncoveredError as lacking:
        _require_in_s3(remote, exchange, lacking, "No shard of this step has it")
        return _together_from_s3(state, rank, remote)


def _from_ranks(state: State, rank: int, paths: Sequence[Path], exchange: Exchange) -> Recovered:
    ranks = RanksReader(paths, exchange, verified=True)
    restore_with(lambda template: load_from_ranks(ranks, template, exchange), state, rank)
    return Recovered(None, {"from_ranks": True, "received_nbytes": ranks.received_nbytes})


def _require_in_s3(remote: Remote | None, exchange: Exchange, lacking: UncoveredError, why: str) -> None:
    if exchange.any(remote is None):
        raise UncoveredError(
            f"{lacking}. {why}, and this step is not in S3. Restore with the layout and the code "
            "version that saved it, or an older step that is in S3.",
            lacking.path,
            lacking.missing,
            lacking.needed,
        ) from lacking


def _together_from_s3(state: State, rank: int, remote: Remote | None) -> Recovered:
    assert remote is not None
    return Recovered(None, {"tier": "s3"} | load_cost(restore_remote(state, remote(False), rank)))


def load_cost(report: LoadReport) -> dict[str, Any]:
    """Return the cost of a load from S3, for the agent."""
    return report.model_dump(mode="json") | {"amplification": round(report.amplification, 4)}


def _alone_from_s3(state: State, rank: int, remote: Remote | None, ballot: Ballot) -> Recovered:
    assert remote is not None, "a rank without a shard reads S3"
    source = remote(True)
    restore_with(
        lambda template: reader.load_remote(source, template, ballot=ballot), state, rank, alone=True
    )
    assert source.report is not None
    return Recovered(None, load_cost(source.report))


def _why_not(path: Path | None, exchange: Exchange) -> str:
    if exchange.size > 1:
        return "No rank's shard of this step has it"
    header = buffers.read_header(path) if path is not None else None
    if header is not None and header.world_size > 1:
        return (
            "The shards of other ranks can be read only over the process group: call init_process_group() before "
            "Session.restore()"
        )
    return "It is in no shard of this step"
