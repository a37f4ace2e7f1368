"""Calls of other machines' shard ports: shards sent, fetched and verified, whole, from and into shared memory."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any

from holdfast import errors
from holdfast.agent.checkpoints import shard_wire
from holdfast.listen import host_and_port
from holdfast.storage.checkpoints.save import buffers
from holdfast.tls import PLAIN, Tls

CONNECT_S = 1.0


def push(
    address: str, secret: str, path: Path, tls: Tls = PLAIN, *, peer_buffers: int = 2
) -> buffers.ShardHeader:
    """Send the complete shard at ``path`` to another machine, which keeps it as a peer's copy.

    Args:
        address: its data port.
        secret: of the fleet.
        path: of the shard.
        tls: how to call it.
        peer_buffers: copies of the rank that it keeps. 1: the one that it has is overwritten.

    Raises:
        UnavailableError: the other side is away, slow or busy.
        CheckpointError: the shard changed under the transfer, or does not fit there.
    """
    header = buffers.read_header(path)
    if header is None:
        raise errors.CheckpointError(f"shard {path}: not complete, nothing to send")
    request = {
        "secret": secret,
        "op": "push",
        "job": header.job,
        "header": header.model_dump(),
        "buffers": peer_buffers,
    }
    with _connected(address, tls) as connection:
        shard_wire.send_line(connection, request)
        shard_wire.send_shard(connection, path, header)
        _raise_for(shard_wire.read_line(connection))
    return header


def push_metadata(address: str, secret: str, job: str, plan: str, path: Path, *, tls: Tls = PLAIN) -> None:
    """Send the global ``.metadata`` of a plan to the machine that keeps the copy of rank 0's shard.

    Raises:
        UnavailableError: the other side is away, slow or busy.
        OSError: there is no such file.
    """
    nbytes = path.stat().st_size
    request = {"secret": secret, "op": "metadata", "job": job, "plan": plan, "nbytes": nbytes}
    with path.open("rb") as file, _connected(address, tls) as connection:
        shard_wire.send_line(connection, request)
        connection.sendfile(file, 0, nbytes)
        _raise_for(shard_wire.read_line(connection))


def pull(
    address: str,
    secret: str,
    *,
    job: str,
    rank: int,
    step: int,
    folder: Path,
    saved_by: int = 0,
    own_buffers: int = 2,
    tls: Tls = PLAIN,
) -> Path:
    """Copy a shard from another machine into ``folder``, over the slot that is not the newest; return its path.

    With ``own_buffers`` 1 over the only slot: its content is of no use, since not all ranks have it.

    Raises:
        UnavailableError: the other side is away, slow or busy.
        CheckpointError: it has no such shard, or it changed under the transfer.
    """
    request = {"secret": secret, "op": "pull", "job": job, "rank": rank, "step": step, "saved_by": saved_by}
    with _connected(address, tls) as connection:
        shard_wire.send_line(connection, request)
        answer = shard_wire.read_line(connection)
        _raise_for(answer)
        header = shard_wire.header_of(answer["header"], job)
        if (header.rank, header.step) != (rank, step):
            raise errors.CheckpointError(f"asked {address} for rank {rank} step {step}, got {header}")
        return shard_wire.receive(
            connection, folder, header, slot=shard_wire.one_slot(folder, rank) if own_buffers == 1 else None
        )


def check(
    address: str, secret: str, *, job: str, rank: int, step: int, saved_by: int = 0, tls: Tls = PLAIN
) -> None:
    """Have another machine verify its shard, and discard it when it is damaged.

    Raises:
        UnavailableError: the other side is away, slow or busy.
        DamagedError: it was damaged.
        CheckpointError: it has no such shard.
    """
    request = {"secret": secret, "op": "check", "job": job, "rank": rank, "step": step, "saved_by": saved_by}
    with _connected(address, tls) as connection:
        shard_wire.send_line(connection, request)
        _raise_for(shard_wire.read_line(connection))


@contextlib.contextmanager
def _connected(address: str, tls: Tls) -> Any:
    try:
        host, port = host_and_port(address)
        with socket.create_connection((host, port), timeout=CONNECT_S) as connection:
            connection.settimeout(shard_wire.SILENCE_S)
            context = tls.client()
            if context is None:
                yield connection
                return
            with context.wrap_socket(connection, server_hostname=tls.agent_name(host)) as secured:
                yield secured
    except (OSError, ValueError) as error:
        raise errors.UnavailableError(f"data port {address}: {error}") from error


def _raise_for(answer: dict[str, Any]) -> None:
    if "error" in answer:
        kind = getattr(errors, str(answer["error"]), errors.UnavailableError)
        raise kind(str(answer.get("message", "")))
