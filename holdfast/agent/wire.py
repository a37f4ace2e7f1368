"""Protocol between a rank and its agent: environment, datagrams, and a page of shared memory. Imports nothing heavy.

A rank reports to its agent in datagrams on a Unix socket: sending costs microseconds and never blocks; a lost one is
made up for by the next. The agent sends orders through the control page, which the rank reads at each step boundary.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import mmap
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from holdfast import private
from holdfast.descriptors import Opened
from holdfast.errors import UnavailableError

_log = logging.getLogger(__name__)

# Environment of a rank under an agent, beside torchrun's own (RANK, WORLD_SIZE, MASTER_ADDR, ...).
ENV_JOB = "HOLDFAST_JOB"
ENV_EPOCH = "HOLDFAST_EPOCH"
ENV_MACHINE = "HOLDFAST_MACHINE"
ENV_SOCKET = "HOLDFAST_AGENT_SOCKET"  # path of the agent's datagram socket
ENV_CONTROL = "HOLDFAST_CONTROL"  # path of this rank's control page
ENV_SHARDS = "HOLDFAST_SHARDS"  # folder in shared memory for this rank's shard files and metadata
ENV_RESTORE = "HOLDFAST_RESTORE"  # JSON: {"step": int, "ticket": str}: the ticket names the state's place
ENV_REPLAY_STEPS = "HOLDFAST_REPLAY_STEPS"  # set in a replay: run so many steps, save nothing
ENV_S3_EVERY = "HOLDFAST_S3_EVERY"
ENV_MEMORY_EVERY = "HOLDFAST_MEMORY_EVERY"  # ranks save every so many steps
ENV_MAX_OVERHEAD = "HOLDFAST_MAX_OVERHEAD"  # largest share of training time that saves may take; empty: any
ENV_SKIP_STEPS = "HOLDFAST_SKIP_STEPS"  # steps whose data the script passes over, by commas
ENV_COPIES = "HOLDFAST_COPIES"  # JSON: copies of each rank's state in the first tier
ENV_PEER = "HOLDFAST_PEER"  # "1" when the agent copies shards to a peer
ENV_PATIENCE = "HOLDFAST_SAVE_PATIENCE_S"  # how long a save waits for the one before instead of being skipped
ENV_FAULTS = "HOLDFAST_FAULTS"  # folder of injected faults of this machine (demo and tests)

# Control page: hold_at_step (-1: none), replicated_step (newest step whose shard of this rank lies on the peer).
_CONTROL = struct.Struct("<qq")
CONTROL_BYTES = mmap.PAGESIZE
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOMEM})
NO_HOLD = -1


END = b"end"
"""Datagram to a rank whose process may be kept: its epoch is over."""


def end_socket(control: str | Path) -> Path:
    """Return where a rank with this control page listens for :data:`END`."""
    return Path(f"{control}.keep")


def next_order(control: str | Path) -> Path:
    """Return the file with which the agent has a rank with this control page begin its next epoch."""
    return Path(f"{control}.next")


class Control:
    """The control page of one rank; the agent creates and writes it, the rank reads it.

    Only what it saves a second time the rank declares not replicated.
    """

    def __init__(self, path: str | Path, *, create: bool = False) -> None:
        flags = os.O_RDWR | (os.O_CREAT | os.O_TRUNC if create else 0)
        descriptor = private.opened(path, flags)
        try:
            if create:
                _allocate(descriptor, path)
            self._page = mmap.mmap(descriptor, CONTROL_BYTES)
        finally:
            os.close(descriptor)
        if create:
            _CONTROL.pack_into(self._page, 0, NO_HOLD, 0)

    def close(self) -> None:
        """Close the page, and the descriptor that it holds; later writes are dropped."""
        self._page.close()

    @property
    def hold_at_step(self) -> int:
        """Step after which to wait while it is set; :data:`NO_HOLD`: go on."""
        return self._read()[0]

    @hold_at_step.setter
    def hold_at_step(self, step: int) -> None:
        self._write(0, step)

    @property
    def replicated_step(self) -> int:
        """Newest step of which this rank's shard lies on the peer (or the agent gave up waiting for it)."""
        return self._read()[1]

    @replicated_step.setter
    def replicated_step(self, step: int) -> None:
        self._write(8, step)

    def _read(self) -> tuple[int, int]:
        try:
            hold, replicated = _CONTROL.unpack_from(self._page, 0)
        except ValueError:  # closed
            return NO_HOLD, 0
        return hold, replicated

    def _write(self, at: int, value: int) -> None:
        with contextlib.suppress(ValueError):  # closed, perhaps by another thread in this moment
            struct.pack_into("<q", self._page, at, value)


def _allocate(descriptor: int, path: str | Path) -> None:
    """Have all of a control page there; a hole in full shared memory would be a SIGBUS, and the end of the agent.

    Raises:
        UnavailableError: there is no room for it.
    """
    with room_for(path):
        os.posix_fallocate(descriptor, 0, CONTROL_BYTES)


@contextlib.contextmanager
def room_for(path: str | Path) -> Iterator[None]:
    """Write what a rank needs to start; shared memory that is full is named.

    Raises:
        UnavailableError: there is no room for it.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise UnavailableError(
            f"{path} cannot be written ({error.strerror}): remove what fills the shared memory there, or give the "
            "machine more; then the ranks start."
        ) from error


def _encoded(message: dict[str, Any]) -> bytes:
    """Return JSON; five times as fast as the standard library's, which is for what is not Unicode (names of files)."""
    try:
        return to_json(message)
    except ValueError:
        return json.dumps(message).encode()


def whole_characters(value: Any) -> Any:
    """Return ``value`` with ``?`` for half characters: a name of a file may have some, and no JSON of ours can."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {whole_characters(key): whole_characters(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [whole_characters(each) for each in value]
    return value


class Sender:
    """A rank's end of the datagram socket. Never blocks, never raises: training goes on without its agent."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._open()

    def _open(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._opened = Opened.at(self._socket.fileno())

    def send(self, message: dict[str, Any]) -> bool:
        """Send one message; False when the agent is away or busy."""
        data = _encoded(message)
        try:
            if not self._opened.is_open():
                self._open_again()
            self._socket.send(data)
        except BlockingIOError:
            return False
        except OSError:  # not connected yet, or to an agent that is gone
            return self._send_again(data)
        return True

    def _open_again(self) -> None:
        """Open a socket in place of one that was closed; nothing is sent to what has its number now."""
        self._socket.detach()
        self._open()
        _log.warning(
            "this rank's socket to its agent was closed, as os.closerange does with all that a process has open: "
            "another one is opened"
        )

    def _send_again(self, data: bytes) -> bool:
        try:
            self._socket.connect(self._path)
            self._socket.send(data)
        except OSError:
            return False
        return True


# Messages, by their "t" (all carry "rank" and "epoch"):
#   step      {"step", "at", "s" (duration, seconds), "loss" | null, "grad_norm" | null, "phases": {name: s},
#             "mfu" (if known), "saves": [newest step that was to be saved, steps between the last two of these]
#             (where not every step is)}
#             non-finite numbers travel as the strings "nan", "inf", "-inf"
#   activity  {"name": "eval" | "checkpoint" | "compile" | ... | ""}   entered (or left: "") a phase
#   saved     {"step", "path", "nbytes"}     a shard is complete in shared memory
#   common    {"step", "path", "since"}      all ranks have that shard; the step before it that they have, or began with
#   kept      {"step", "path"}               with a single buffer: what the peer should have, repeated until it does
#   skipped   {"step", "skipped"}            a save was left out (the one before was not done), so many so far
#   waits     {}  at its restore, until it knows where its state is; now and then
#   restored  {"tier", "step", "s", and from S3 "requests", "read_nbytes", "received_nbytes", "amplification",
#             from all ranks' shards "from_ranks": true, "received_nbytes"}
#   allows    {"names"}                      classes that the script allows in checkpoints, as it restores
#   held      {"step"} / released {}         waits at a boundary as ordered / goes on
#   replayed  {"ok": bool, "detail": str, "digests": [StepDigest], "hardware": str}    a replay's outcome
#   keeps     {}                             its process may be kept (holdfast.run), and listens for the epoch's end
#   left      {"at", and if a peer was lost "error_type", "message"}    is out of the training function, and waits
#   joined    {}                             a kept process is in this epoch
#   failed    {"at", "error_type", "message", "traceback", "user_frame": "file:line in func" | null}
#             an uncaught exception of the script (sent by the rank's bootstrap)
