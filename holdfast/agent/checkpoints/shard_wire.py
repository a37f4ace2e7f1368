"""Messages between a shard port and its callers: lines of JSON, and the bytes of shards.

The header page is not sent: the receiver writes its own once it has checked the digest of what it received, so a
transfer that was cut off never counts. The kernel moves the bytes from one file to the other's pages: apart from that
only the digest reads them, while they are still in the cache.
"""

from __future__ import annotations

import json
import mmap
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import errors
from holdfast.storage.checkpoints.save import buffers, slot_files

SILENCE_S = 5.0
"""Longest wait for the next bytes."""
_SLOWEST_BYTES_S = 20e6  # a transfer slower than this is given up
_LINE_BYTES = 16 * 1024
_PIECE_BYTES = 1 << 20  # at most so much is received at once: it is still in the cache for the digest
_SENT_AT_ONCE = 64 << 20


def receive(
    connection: socket.socket,
    folder: Path,
    header: buffers.ShardHeader,
    mapped: Callable[[Path, int], mmap.mmap] = slot_files.create,
    slot: Path | None = None,
) -> Path:
    """Receive a shard's bytes into ``slot`` and commit them if the digest is right.

    ``slot`` None: the slot of ``folder`` that does not hold the save that all ranks have; when that save was not
    reported, the slot that is not the newest.
    """
    path = slot or buffers.slot_to_overwrite(folder, header.rank, header.keeps)
    buffer = mapped(path, header.file_nbytes)
    buffers.begin(buffer)
    digest = buffers.StreamDigest(header)
    with memoryview(buffer) as whole, whole[buffers.HEADER_BYTES :] as body:
        receive_into(connection, body, digest.update)
    if (found := digest.finish()) != header.digest:
        raise errors.CheckpointError(
            f"shard of job {header.job!r} rank {header.rank} step {header.step}: digest {found} after the "
            f"transfer, expected {header.digest}. It was overwritten meanwhile or damaged on the way."
        )
    buffers.commit(buffer, header)
    return path


def one_slot(folder: Path, rank: int) -> Path:
    """Return the only slot that copies of ``rank`` in ``folder`` go into; another one is given up."""
    kept, other = buffers.only_slot(folder, rank)
    other.unlink(missing_ok=True)
    return kept


def receive_into(connection: socket.socket, body: memoryview, arrived: Callable[[memoryview], None]) -> None:
    """Fill ``body``; call ``arrived`` with each piece right after it was received.

    Raises:
        UnavailableError: the transfer was too slow, or the connection ended.
    """
    deadline = time.monotonic() + SILENCE_S + len(body) / _SLOWEST_BYTES_S
    done = 0
    while done < len(body):
        if time.monotonic() > deadline:
            raise errors.UnavailableError(f"transfer too slow: {done} of {len(body)} bytes came in time")
        count = connection.recv_into(body[done : done + _PIECE_BYTES])
        if count == 0:
            raise errors.UnavailableError(f"connection ended after {done} of {len(body)} bytes")
        arrived(body[done : done + count])
        done += count


def send_shard(connection: socket.socket, path: Path, header: buffers.ShardHeader) -> None:
    """Send the bytes behind the header in pieces, and check the deadline between them.

    Raises:
        UnavailableError: the transfer was too slow.
    """
    nbytes = header.file_nbytes - buffers.HEADER_BYTES
    deadline = time.monotonic() + SILENCE_S + nbytes / _SLOWEST_BYTES_S
    with path.open("rb") as file:
        for done in range(0, nbytes, _SENT_AT_ONCE):
            if time.monotonic() > deadline:
                raise errors.UnavailableError(f"transfer too slow: {done} of {nbytes} bytes went in time")
            connection.sendfile(file, buffers.HEADER_BYTES + done, min(_SENT_AT_ONCE, nbytes - done))


def read_line(connection: socket.socket) -> dict[str, Any]:
    """Read one JSON line, and not a byte more: the bytes after it are a shard's.

    Raises:
        UnavailableError: the connection ended.
        RefusedError: it is no message.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        if isinstance(connection, ssl.SSLSocket):
            # TLS cannot peek: byte by byte, from its own buffer.
            came = connection.recv(1)
        else:
            # Peek, so that bytes behind the line stay in the socket.
            seen = connection.recv(_LINE_BYTES, socket.MSG_PEEK)
            came = connection.recv(seen.find(b"\n") + 1 or len(seen)) if seen else b""
        if not came:
            raise errors.UnavailableError("connection ended before an answer")
        line += came
        if len(line) > _LINE_BYTES:
            raise errors.RefusedError(f"data port: request line over {_LINE_BYTES} bytes")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise errors.RefusedError("data port: request is not JSON") from None
    if not isinstance(message, dict):
        raise errors.RefusedError("data port: request is not a JSON object")
    return message


def send_line(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one message, as :func:`read_line` reads it."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def header_of(raw: Any, job: str) -> buffers.ShardHeader:
    """Return the header in a message, of a shard of ``job``.

    Raises:
        CheckpointError: it is malformed, or of another job.
    """
    try:
        header = buffers.ShardHeader.model_validate(raw)
    except ValueError as error:
        raise errors.CheckpointError(f"shard header is malformed: {error}") from None
    if header.job != job or header.rank < 0 or not header.is_laid_out:
        raise errors.CheckpointError(f"shard header does not describe a shard of job {job!r}: {header}")
    return header
