"""The machine's data port: whole shards straight between shared memory and sockets, over plain TCP.

A request is one line of JSON with the shared secret, then (push) exactly the shard's bytes; the answer is one
line of JSON, then (pull) exactly the shard's bytes. One request per connection.

With rank 0's shards goes, once per plan, the checkpoint's global ``.metadata``: so a checkpoint can be completed
from copies alone.
"""

from __future__ import annotations

import contextlib
import logging
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
from holdfast.agent.checkpoints import shard_wire
from holdfast.agent.checkpoints.memory import Memory
from holdfast.listen import authority, family_of
from holdfast.secret import Keys, keys
from holdfast.storage.checkpoints.save import buffers
from holdfast.strangers import Strangers
from holdfast.tls import PLAIN, Tls

_log = logging.getLogger(__name__)

_MAX_TRANSFERS = 32
_STRANGERS, _STRANGERS_OF_ONE = 128, 32
REQUEST_S = 5.0
"""From the connection to the end of the request's line, secret included."""
_PAUSE_S = 0.2
_METADATA_BYTES = 4 << 30
_PLAN = re.compile(r"\d+(\.\d+)*")


class ShardPort:
    """Serves this machine's shards and takes copies of its neighbours'. One thread per connection, bounded.

    A caller that has not sent its request, secret included, within :data:`REQUEST_S` is cut off, whatever it does
    meanwhile; when too many wait, the oldest is cut off. Transfers are those of machines that know the secret;
    ``unauthorized`` is called for each caller that has another one.
    """

    def __init__(
        self,
        memory: Memory,
        secret: str | Keys,
        host: str,
        tls: Tls = PLAIN,
        unauthorized: Callable[[], object] = lambda: None,
    ) -> None:
        self._memory = memory
        self._secret = keys(secret)
        self._unauthorized = unauthorized
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
            plain.settimeout(shard_wire.SILENCE_S)
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
                    self._answer(connection, self._request(connection))
                except errors.HoldfastError as error:
                    shard_wire.send_line(connection, {"error": type(error).__name__, "message": str(error)})
        except OSError as error:
            _log.info("shard connection lost: %s", error)
        except Exception:
            _log.exception("shard connection failed")
        finally:
            self._strangers.left(connection)

    def _request(self, connection: socket.socket) -> dict[str, Any]:
        """Read the request of a caller that knows the secret.

        Raises:
            UnauthorizedError: the secret is missing or wrong.
        """
        if isinstance(connection, ssl.SSLSocket):
            connection.do_handshake()
        request = shard_wire.read_line(connection)
        if not self._secret.accepts(str(request.get("secret"))):
            self._unauthorized()
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
            shard_wire.send_line(connection, {"ok": True})
        else:
            raise errors.UnknownError(f"data port: op {operation!r}, expected push, metadata, pull or check")

    def _take(self, connection: socket.socket, job: str, request: dict[str, Any]) -> None:
        header = shard_wire.header_of(request["header"], job)
        self._require_recent(header)
        with self._locks[(job, header.rank)]:
            self._require_recent(header)  # the one before may have taken long
            folder = self._memory.peer(job)
            slot = shard_wire.one_slot(folder, header.rank) if request.get("buffers") == 1 else None
            path = shard_wire.receive(connection, folder, header, self._memory.mapped, slot)
            try:
                self._require_recent(header)
            except errors.StaleError:
                with contextlib.suppress(FileNotFoundError):
                    buffers.discard(path)
                raise
        shard_wire.send_line(connection, {"ok": True})

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
            shard_wire.receive_into(connection, body, lambda _: None)
        folder = self._memory.peer(job)
        durable.make_folder(folder)
        durable.write(buffers.metadata_path(folder, plan), memoryview(data), "peer-plan")
        self._forget_plans(folder, plan)
        shard_wire.send_line(connection, {"ok": True})

    def _forget_plans(self, folder: Path, newest: str) -> None:
        """Keep only the plans that some shard was saved by."""
        used = {header.plan for _, header in buffers.inventory(folder)} | {newest}
        kept = {buffers.metadata_path(folder, plan) for plan in used}
        for path in set(folder.glob("metadata-*.pickle")) - kept:
            path.unlink(missing_ok=True)

    def _give(self, connection: socket.socket, job: str, rank: int, step: int, saved_by: int) -> None:
        path, header = self._memory.require(job, rank, step, saved_by)
        shard_wire.send_line(connection, {"ok": True, "header": header.model_dump()})
        shard_wire.send_shard(connection, path, header)


def _cut(connection: socket.socket) -> None:
    """End a connection while its own thread uses it, in TLS too: that thread's next call fails."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _which(request: dict[str, Any]) -> tuple[int, int, int]:
    """Return rank, step and the epoch that saved it (0: any)."""
    return int(request["rank"]), int(request["step"]), int(request.get("saved_by", 0))
