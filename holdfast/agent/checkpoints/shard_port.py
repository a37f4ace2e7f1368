"""The machine's data port: whole shards straight between shared memory and sockets, over plain TCP.

A request is one line of JSON with the shared secret, then (push) exactly the shard's bytes; the answer is one
line of JSON, then (pull) exactly the shard's bytes. One request per connection. The header page is not sent:
the receiver writes its own once it has checked the digest of what it received, so a torn transfer never counts. The
kernel moves the bytes from one file to the other's pages: apart from that only the digest reads them, while they
are still in the cache.

With rank 0's shards goes, once per plan, the checkpoint's global ``.metadata``: so a checkpoint can be completed
from copies alone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import re
import socket
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import durable, errors, names
from holdfast.agent.checkpoints.memory import Memory
from holdfast.listen import authority, family_of, host_and_port
from holdfast.secret import Keys, keys
from holdfast.storage.checkpoints.save import buffers, slot_files
from holdfast.strangers import Strangers
from holdfast.tls import PLAIN, Tls

_log = logging.getLogger(__name__)

CONNECT_S = 1.0
_SILENCE_S = 5.0  # longest wait for the next bytes
_SLOWEST_BYTES_S = 20e6  # a transfer slower than this is given up
_LINE_BYTES = 16 * 1024
_MAX_TRANSFERS = 32
_STRANGERS, _STRANGERS_OF_ONE = 128, 32
REQUEST_S = 5.0
"""From the connection to the end of the request's line, secret included."""
_PAUSE_S = 0.2
_PIECE_BYTES = 1 << 20  # at most so much is received at once: it is still in the cache for the digest
_SENT_AT_ONCE = 64 << 20
_METADATA_BYTES = 4 << 30
_PLAN = re.compile(r"\d+(\.\d+)*")


class ShardPort:
    """Serves this machine's shards and takes copies of its neighbours'. One thread per connection, bounded.

    A caller that has not sent its request, secret included, within :data:`REQUEST_S` is cut off, whatever it does
    meanwhile; when too many wait, the oldest is cut off. Transfers are those of machines that know the secret.
    """

    def __init__(self, memory: Memory, secret: str | Keys, host: str, tls: Tls = PLAIN) -> None:
        self._memory = memory
        self._secret = keys(secret)
        self._context = tls.server()
        self._locks: defaultdict[tuple[str, int], threading.Lock] = defaultdict(threading.Lock)
        self._free = threading.BoundedSemaphore(_MAX_TRANSFERS)
        self._strangers = Strangers(REQUEST_S, _STRANGERS_OF_ONE, _STRANGERS)
        self._closed = False
        self._listener = socket.create_server((host, 0), family=family_of(host), backlog=128)
        self.address = authority(host, self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="shard-port", daemon=True).start()

    def close(self) -> None:
        """Stop listening; transfers under way end by themselves."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        """Accept until closed: no error of one connection, and no lack of files or threads, ends the loop."""
        while not self._closed:
            try:
                # Waits without limit only while no connection has to be cut off.
                self._listener.settimeout(self._strangers.sweep(time.monotonic()))
                self._meet(*self._listener.accept())
            except TimeoutError:
                continue
            except Exception as error:
                if self._closed:
                    return
                _log.warning("shard port: %s; going on in %.1f s", error, _PAUSE_S)
                time.sleep(_PAUSE_S)  # the error may be a lasting one, such as too many open files

    def _meet(self, plain: socket.socket, peer: tuple[str, int]) -> None:
        connection = plain
        try:
            plain.settimeout(_SILENCE_S)
            if self._context is not None:
                # The handshake is done by the connection's own thread.
                connection = self._context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
            self._strangers.came(connection, peer[0], time.monotonic(), lambda: _cut(connection))
            threading.Thread(target=self._serve, args=(connection,), name="shard", daemon=True).start()
        except BaseException:
            self._strangers.left(connection)
            connection.close()
            raise

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                try:
                    self._answer(connection, self._hear(connection))
                except errors.HoldfastError as error:
                    _send_line(connection, {"error": type(error).__name__, "message": str(error)})
        except OSError as error:
            _log.info("shard connection lost: %s", error)
        except Exception:
            _log.exception("shard connection failed")
        finally:
            self._strangers.left(connection)

    def _hear(self, connection: socket.socket) -> dict[str, Any]:
        """Read the request of a caller that knows the secret.

        Raises:
            UnauthorizedError: the secret is missing or wrong.
        """
        if isinstance(connection, ssl.SSLSocket):
            connection.do_handshake()
        request = _read_line(connection)
        if not self._secret.accepts(str(request.get("secret"))):
            raise errors.UnauthorizedError("data port: missing or wrong secret")
        self._strangers.left(connection)
        return request

    def _answer(self, connection: socket.socket, request: dict[str, Any]) -> None:
        if not self._free.acquire(blocking=False):
            raise errors.UnavailableError(f"data port: {_MAX_TRANSFERS} transfers are under way, try again")
        try:
            self._transfer(connection, request)
        except (KeyError, TypeError, ValueError) as error:
            raise errors.RefusedError(f"data port: malformed request: {error!r}") from error
        finally:
            self._free.release()

    def _transfer(self, connection: socket.socket, request: dict[str, Any]) -> None:
        operation = request.get("op")
        job = names.require(names.JOB, request.get("job"), "data port: ")
        if operation == "push":
            self._take(connection, job, request)
        elif operation == "metadata":
            self._take_metadata(connection, job, str(request.get("plan")), int(request["nbytes"]))
        elif operation == "pull":
            self._give(connection, job, *_which(request))
        elif operation == "check":
            self._memory.require_whole(job, *_which(request))
            _send_line(connection, {"ok": True})
        else:
            raise errors.UnknownError(f"data port: op {operation!r}, expected push, metadata, pull or check")

    def _take(self, connection: socket.socket, job: str, request: dict[str, Any]) -> None:
        header = _header(request["header"], job)
        self._require_recent(header)
        with self._locks[(job, header.rank)]:
            self._require_recent(header)  # the one before may have taken long
            folder = self._memory.peer(job)
            slot = one_slot(folder, header.rank) if request.get("buffers") == 1 else None
            path = receive(connection, folder, header, self._memory.mapped, slot)
            try:
                self._require_recent(header)
            except errors.StaleError:
                with contextlib.suppress(FileNotFoundError):
                    buffers.discard(path)
                raise
        _send_line(connection, {"ok": True})

    def _require_recent(self, header: buffers.ShardHeader) -> None:
        """Refuse a copy of an epoch that is over here: what the present one resumed from must not make way for it.

        Raises:
            StaleError: it is one.
        """
        oldest = self._memory.accept_from.get(header.job, 0)
        if header.epoch < oldest:
            raise errors.StaleError(
                f"shard of job {header.job!r} epoch {header.epoch}: epoch {oldest} runs here"
            )

    def _take_metadata(self, connection: socket.socket, job: str, plan: str, nbytes: int) -> None:
        if not _PLAN.fullmatch(plan) or not 0 <= nbytes <= _METADATA_BYTES:
            raise errors.UnknownError(f"data port: plan {plan!r} of {nbytes} bytes is no plan")
        data = bytearray(nbytes)
        with memoryview(data) as body:
            _receive_into(connection, body, lambda _: None)
        folder = self._memory.peer(job)
        durable.make_folder(folder)
        durable.write(buffers.metadata_path(folder, plan), memoryview(data), "peer-plan")
        self._forget_plans(folder, plan)
        _send_line(connection, {"ok": True})

    def _forget_plans(self, folder: Path, newest: str) -> None:
        """Keep only the plans that some shard was saved by."""
        used = {header.plan for _, header in buffers.inventory(folder)} | {newest}
        kept = {buffers.metadata_path(folder, plan) for plan in used}
        for path in set(folder.glob("metadata-*.pickle")) - kept:
            path.unlink(missing_ok=True)

    def _give(self, connection: socket.socket, job: str, rank: int, step: int, saved_by: int) -> None:
        path, header = self._memory.require(job, rank, step, saved_by)
        _send_line(connection, {"ok": True, "header": header.model_dump()})
        _send_shard(connection, path, header)


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
        _send_line(connection, request)
        _send_shard(connection, path, header)
        _raise_for(_read_line(connection))
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
        _send_line(connection, request)
        connection.sendfile(file, 0, nbytes)
        _raise_for(_read_line(connection))


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
        _send_line(connection, request)
        answer = _read_line(connection)
        _raise_for(answer)
        header = _header(answer["header"], job)
        if (header.rank, header.step) != (rank, step):
            raise errors.CheckpointError(f"asked {address} for rank {rank} step {step}, got {header}")
        return receive(connection, folder, header, slot=one_slot(folder, rank) if own_buffers == 1 else None)


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
        _send_line(connection, request)
        _raise_for(_read_line(connection))


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
        _receive_into(connection, body, digest.update)
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


def _receive_into(connection: socket.socket, body: memoryview, arrived: Callable[[memoryview], None]) -> None:
    """Fill ``body``; call ``arrived`` with each piece right after it was received."""
    deadline = time.monotonic() + _SILENCE_S + len(body) / _SLOWEST_BYTES_S
    done = 0
    while done < len(body):
        if time.monotonic() > deadline:
            raise errors.UnavailableError(f"transfer too slow: {done} of {len(body)} bytes came in time")
        count = connection.recv_into(body[done : done + _PIECE_BYTES])
        if count == 0:
            raise errors.UnavailableError(f"connection ended after {done} of {len(body)} bytes")
        arrived(body[done : done + count])
        done += count


def _send_shard(connection: socket.socket, path: Path, header: buffers.ShardHeader) -> None:
    """Send the bytes behind the header in pieces, and check the deadline between them."""
    nbytes = header.file_nbytes - buffers.HEADER_BYTES
    deadline = time.monotonic() + _SILENCE_S + nbytes / _SLOWEST_BYTES_S
    with path.open("rb") as file:
        for done in range(0, nbytes, _SENT_AT_ONCE):
            if time.monotonic() > deadline:
                raise errors.UnavailableError(f"transfer too slow: {done} of {nbytes} bytes went in time")
            connection.sendfile(file, buffers.HEADER_BYTES + done, min(_SENT_AT_ONCE, nbytes - done))


def _cut(connection: socket.socket) -> None:
    """End a connection while its own thread uses it, in TLS too: that thread's next call fails."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


@contextlib.contextmanager
def _connected(address: str, tls: Tls) -> Any:
    try:
        host, port = host_and_port(address)
        with socket.create_connection((host, port), timeout=CONNECT_S) as connection:
            connection.settimeout(_SILENCE_S)
            context = tls.client()
            if context is None:
                yield connection
                return
            with context.wrap_socket(connection, server_hostname=tls.agent_name(host)) as secured:
                yield secured
    except (OSError, ValueError) as error:
        raise errors.UnavailableError(f"data port {address}: {error}") from error


def _read_line(connection: socket.socket) -> dict[str, Any]:
    """Read one JSON line, and not a byte more: the bytes after it are a shard's."""
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
    except ValueError:
        raise errors.RefusedError("data port: request is not JSON") from None
    if not isinstance(message, dict):
        raise errors.RefusedError("data port: request is not a JSON object")
    return message


def _send_line(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _which(request: dict[str, Any]) -> tuple[int, int, int]:
    """Return rank, step and the epoch that saved it (0: any)."""
    return int(request["rank"]), int(request["step"]), int(request.get("saved_by", 0))


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
