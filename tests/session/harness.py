"""A fake agent: datagram socket, control pages and rank processes forked from a warm fork server."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import wire
from holdfast.storage.checkpoints.save import buffers

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "train_gpt.py"
_PRELOAD = [
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch._dynamo",
    "holdfast.session",
    "holdfast.agent.ranks.lost_peer",
]

WAIT_S = 60.0
"""Sessions under a fake agent wait so long for it, where those under a real one go on at once, or after a second."""
_PATIENT = "HOLDFAST_TEST_PATIENT"

_to_the_end = ExitStack()
"""Of a rank process: the last save may be finished after its script."""

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload([*_PRELOAD, __name__])


@contextmanager
def patience() -> Iterator[None]:
    """Sessions of this process miss nothing while the fake agent's thread has no processor.

    Its socket holds ten datagrams, and what comes then is given up: no test could count messages. A save whose copy is
    late is one that later saves go over.
    """
    from holdfast.session import boundary  # noqa: PLC0415  (only tests with ranks need torch here)

    begin = wire.Sender.__init__

    def patient(self: wire.Sender, path: str) -> None:
        begin(self, path)
        self._socket.settimeout(WAIT_S)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire.Sender, "__init__", patient)
        patch.setattr(boundary, "REPLICATION_S", WAIT_S)
        yield


def run_script(environ: dict[str, str], log: str, script: str, args: Sequence[str]) -> None:
    """Body of a rank process: the script, under ``environ``, its output in ``log``."""
    os.environ.update(environ)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.argv = [script, *args]
    if _PATIENT in environ:
        _to_the_end.enter_context(patience())
    runpy.run_path(script, run_name="__main__")


class FakeAgent:
    """Runs the ranks of one job on one 'machine' and plays the agent's part."""

    def __init__(self, folder: Path, world_size: int, *, replicate: bool = True) -> None:
        self.folder, self.world_size, self.replicate = folder, world_size, replicate
        self.shards = folder / "own" / "gpt"
        self.messages: list[dict[str, Any]] = []
        self.controls: dict[int, wire.Control] = {}
        self.ranks: list[BaseProcess] = []
        self.epoch = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / "sock"))
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        while True:
            message = json.loads(self._socket.recv(65536))
            if message["t"] == "stop":
                return
            self.on_message(message)
            self.messages.append(message)

    def on_message(self, message: dict[str, Any]) -> None:
        """Do what the agent does at a message of a rank."""
        if message["t"] == "saved" and self.replicate:
            self.controls[message["rank"]].replicated_step = message["step"]

    def environ(self, rank: int, restore: tuple[int, Path] | None = None, **extra: str) -> dict[str, str]:
        """Variables of a rank's environment beside torchrun's."""
        control = self.folder / f"control-{rank}"
        self.controls[rank] = wire.Control(control, create=True)
        step, path = restore or (0, None)
        return {
            wire.ENV_JOB: "gpt",
            wire.ENV_EPOCH: str(self.epoch),
            wire.ENV_MACHINE: "m0",
            wire.ENV_SOCKET: str(self.folder / "sock"),
            wire.ENV_CONTROL: str(control),
            wire.ENV_SHARDS: str(self.shards),
            wire.ENV_PEER: "1",
            # Steps of tests take no time: without this, every other save would be skipped.
            wire.ENV_PATIENCE: "30",
            wire.ENV_RESTORE: json.dumps({"step": step, "tier": None, "path": str(path) if path else ""}),
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world_size),
            **({_PATIENT: "1"} if self.replicate else {}),
            **extra,
        }

    def start(
        self,
        script: Path,
        args: Sequence[str],
        restore: Callable[[int], tuple[int, Path]] | None = None,
        **extra: str,
    ) -> None:
        """Start all ranks for a new epoch."""
        from torch.distributed import TCPStore  # noqa: PLC0415  (only tests with ranks need torch here)

        self.epoch += 1
        self._store = TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30)
        )
        extra |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        self.ranks = []
        for rank in range(self.world_size):
            environ = self.environ(rank, restore(rank) if restore else None, **extra)
            body = (environ, str(self.log), str(script), [str(each) for each in args])
            self.ranks.append(_forks.Process(target=run_script, args=body))
            self.ranks[-1].start()

    @property
    def log(self) -> Path:
        """Output of the current epoch's ranks."""
        return self.folder / f"e{self.epoch}.log"

    def join(self, timeout_s: float = 150.0) -> list[int | None]:
        """Wait for all ranks and return their exit statuses; of one that does not end, the output has the stacks."""
        deadline = time.monotonic() + timeout_s
        for rank in self.ranks:
            rank.join(max(0.0, deadline - time.monotonic()))
            if rank.is_alive():
                dump = subprocess.run(
                    [
                        str(Path(sys.executable).with_name("py-spy")),
                        "dump",
                        "--native",
                        "--pid",
                        str(rank.pid),
                    ],
                    capture_output=True,
                    text=True,
                    timeout=30,
                    check=False,
                )
                with self.log.open("a") as log:
                    log.write(f"\nstill running after {timeout_s:.0f} s:\n{dump.stdout}{dump.stderr}\n")
        return [rank.exitcode for rank in self.ranks]

    def kill(self) -> None:
        """SIGKILL all ranks that still run."""
        for rank in self.ranks:
            if rank.is_alive():
                rank.kill()  # one whose peers are killed may end by itself at this moment: that is no error
            rank.join(60)

    def of(self, kind: str, rank: int | None = None) -> list[dict[str, Any]]:
        """Messages of one kind in this epoch."""
        return [
            each
            for each in list(self.messages)
            if each["t"] == kind and each["epoch"] == self.epoch and rank in (None, each["rank"])
        ]

    def wait_for(self, condition: Callable[[], Any], timeout_s: float = 150.0) -> None:
        """Wait until ``condition`` holds; fails with the ranks' output when it does not in time."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"condition not met in {timeout_s} s; log:\n{self.output()}")
            time.sleep(0.005)

    def output(self) -> str:
        """Lines that the ranks printed in this epoch."""
        return self.log.read_text() if self.log.exists() else ""

    def shard(self, rank: int, step: int) -> Path:
        """Path of the complete shard of ``rank`` at ``step``."""
        held = {(each.rank, each.step): path for path, each in buffers.inventory(self.shards)}
        assert (rank, step) in held, f"no shard of rank {rank} at step {step}: {sorted(held)}"
        return held[rank, step]

    def common_step(self) -> int:
        """Newest step of which every rank has a shard."""
        steps = [
            {each.step for _, each in buffers.inventory(self.shards) if each.rank == rank}
            for rank in range(self.world_size)
        ]
        return max(set.intersection(*steps))

    def close(self) -> None:
        """Stop everything."""
        self.kill()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b'{"t": "stop"}', str(self.folder / "sock"))
        self._thread.join(5)
        self._socket.close()
