"""The machine's data port: whole shards straight between shared memory and sockets, over plain TCP.

A request is one line of JSON with the shared secret, then (push) exactly the shard's bytes; the answer is one
line of JSON, then (pull) exactly the shard's bytes. One request per connection. The header page is not sent:
the receiver writes its own once it has checked the digest of what came, so a torn transfer never counts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from holdfast import errors
from holdfast.agent.memory import Memory
from holdfast.secret import matches
from holdfast.storage.checkpoints import buffers

_log = logging.getLogger(__name__)

CONNECT_S = 1.0
_SILENCE_S = 5.0  # longest wait for the next bytes
_SLOWEST_BYTES_S = 20e6  # a transfer slower than this is given up
_LINE_BYTES = 16 * 1024
_MAX_CONNECTIONS = 32
_JOB = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


class ShardPort:
    """Serves this machine's shards and takes copies of its neighbours'. One thread per connection, bounded."""

    def __init__(self, memory: Memory, secret: str, host: str) -> None:
        self._memory = memory
        self._secret = secret
        self._locks: defaultdict[tuple[str, int], threading.Lock] = defaultdict(threading.Lock)
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._listener = socket.create_server((host, 0), backlog=128)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="shard-port", daemon=True).start()

    def close(self) -> None:
        """Stop listening; transfers under way end by themselves."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(_SILENCE_S)
            if not self._free.acquire(blocking=False):
                connection.close()  # the other side reads it as unavailable and tries again
                continue
            threading.Thread(target=self._serve, args=(connection,), name="shard", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                try:
                    self._answer(connection)
                except errors.HoldfastError as error:
                    _send_line(connection, {"error": type(error).__name__, "message": str(error)})
        except OSError as error:
            _log.info("shard connection lost: %s", error)
        finally:
            self._free.release()

    def _answer(self, connection: socket.socket) -> None:
        request = _read_line(connection)
        if not matches(f"Bearer {request.get('secret')}", self._secret):
            raise errors.UnauthorizedError("data port: missing or wrong secret")
        job, operation = str(request.get("job")), request.get("op")
        if not _JOB.fullmatch(job):
            raise errors.UnknownError(f"data port: job {job!r} is not a job's name")
        if operation == "push":
            self._take(connection, job, request)
        elif operation == "pull":
            self._give(connection, job, int(request["rank"]), int(request["step"]))
        else:
            raise errors.UnknownError(f"data port: op {operation!r}, expected push or pull")

    def _take(self, connection: socket.socket, job: str, request: dict[str, Any]) -> None:
        header = _header(request["header"], job)
        oldest = self._memory.accept_from.get(job, 0)
        if header.epoch < oldest:
            raise errors.StaleError(f"shard of job {job!r} epoch {header.epoch}: epoch {oldest} runs here")
        with self._locks[(job, header.rank)]:
            receive(connection, self._memory.peer(job), header)
        _send_line(connection, {"ok": True})

    def _give(self, connection: socket.socket, job: str, rank: int, step: int) -> None:
        path, header = self._memory.require(job, rank, step)
        _send_line(connection, {"ok": True, "header": header.model_dump()})
        _send_shard(connection, path, header)


def push(address: str, secret: str, path: Path) -> buffers.ShardHeader:
    """Send the complete shard at ``path`` to another machine, which keeps it as a peer's copy.

    Raises:
        UnavailableError: the other side is away, slow or busy.
        CheckpointError: the shard changed under the transfer, or does not fit there.
    """
    header = buffers.read_header(path)
    if header is None:
        raise errors.CheckpointError(f"shard {path}: not complete, nothing to send")
    request = {"secret": secret, "op": "push", "job": header.job, "header": header.model_dump()}
    with _connected(address) as connection:
        _send_line(connection, request)
        _send_shard(connection, path, header)
        _raise_for(_read_line(connection))
    return header


def pull(address: str, secret: str, *, job: str, rank: int, step: int, folder: Path) -> Path:
    """Copy a shard from another machine into ``folder``, over the slot that is not the newest; its path.

    Raises:
        UnavailableError: the other side is away, slow or busy.
        CheckpointError: it has no such shard, or it changed under the transfer.
    """
    request = {"secret": secret, "op": "pull", "job": job, "rank": rank, "step": step}
    with _connected(address) as connection:
        _send_line(connection, request)
        answer = _read_line(connection)
        _raise_for(answer)
        header = _header(answer["header"], job)
        if (header.rank, header.step) != (rank, step):
            raise errors.CheckpointError(f"asked {address} for rank {rank} step {step}, got {header}")
        return receive(connection, folder, header)


def receive(connection: socket.socket, folder: Path, header: buffers.ShardHeader) -> Path:
    """Take a shard's bytes into the slot of ``folder`` that is not the newest; commit if the digest is right."""
    path = buffers.slot_to_overwrite(folder, header.rank)
    with buffers.create(path, header.file_nbytes) as buffer:
        buffers.begin(buffer)
        with memoryview(buffer) as whole, whole[buffers.HEADER_BYTES :] as body:
            _receive_into(connection, body)
        if (found := buffers.digest_of(buffer, header)) != header.digest:
            raise errors.CheckpointError(
                f"shard of job {header.job!r} rank {header.rank} step {header.step}: digest {found} after the "
                f"transfer, expected {header.digest}. It was overwritten meanwhile or damaged on the way."
            )
        buffers.commit(buffer, header)
    return path


def _receive_into(connection: socket.socket, body: memoryview) -> None:
    deadline = time.monotonic() + _SILENCE_S + len(body) / _SLOWEST_BYTES_S
    done = 0
    while done < len(body):
        if time.monotonic() > deadline:
            raise errors.UnavailableError(f"transfer too slow: {done} of {len(body)} bytes came in time")
        count = connection.recv_into(body[done:])
        if count == 0:
            raise errors.UnavailableError(f"connection ended after {done} of {len(body)} bytes")
        done += count


def _send_shard(connection: socket.socket, path: Path, header: buffers.ShardHeader) -> None:
    with path.open("rb") as file:
        connection.sendfile(file, buffers.HEADER_BYTES, header.file_nbytes - buffers.HEADER_BYTES)


@contextlib.contextmanager
def _connected(address: str) -> Any:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_S) as connection:
            connection.settimeout(_SILENCE_S)
            yield connection
    except (OSError, ValueError) as error:
        raise errors.UnavailableError(f"data port {address}: {error}") from error


def _read_line(connection: socket.socket) -> dict[str, Any]:
    """One JSON line, and not a byte more: what follows is a shard's."""
    line = bytearray()
    while not line.endswith(b"\n"):
        # Peek, so that bytes behind the line stay in the socket.
        seen = connection.recv(_LINE_BYTES, socket.MSG_PEEK)
        if not seen:
            raise errors.UnavailableError("connection ended before an answer")
        line += connection.recv(seen.find(b"\n") + 1 or len(seen))
        if len(line) > _LINE_BYTES:
            raise errors.RefusedError(f"data port: request line over {_LINE_BYTES} bytes")
    try:
        message = json.loads(line)
    except ValueError:
        raise errors.RefusedError("data port: request is not JSON") from None
    if not isinstance(message, dict):
        raise errors.RefusedError("data port: request is not a JSON object")
    return message


def _send_line(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _header(raw: Any, job: str) -> buffers.ShardHeader:
    try:
        header = buffers.ShardHeader.model_validate(raw)
    except ValueError as error:
        raise errors.CheckpointError(f"shard header is malformed: {error}") from None
    ends = (header.meta_offset + header.meta_nbytes, header.payload_offset + header.payload_nbytes)
    if header.job != job or header.rank < 0 or header.file_nbytes < max(buffers.HEADER_BYTES, *ends):
        raise errors.CheckpointError(f"shard header does not describe a shard of job {job!r}: {header}")
    return header


def _raise_for(answer: dict[str, Any]) -> None:
    if "error" in answer:
        kind = getattr(errors, str(answer["error"]), errors.UnavailableError)
        raise kind(str(answer.get("message", "")))
