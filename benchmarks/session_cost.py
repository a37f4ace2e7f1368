"""Time a Session's calls: ``python -m benchmarks.session_cost FOLDER STEPS`` prints median microseconds per step."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast import Session
from holdfast.agent import wire
from holdfast.session.saver import Saver

WARM_UP = 200


class WithoutCopy(Saver):
    """A saver that copies nothing."""

    def save(self, *_: object, **__: object) -> None:
        """Report a shard that is there already."""
        self._boundary.saved(self._context.epoch, self._context.shards, 0)


@contextlib.contextmanager
def session_in(folder: Path) -> Iterator[Session]:
    """A Session of one rank whose messages a process takes for an agent; shards lie in ``folder``."""
    path = folder / "agent.sock"
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    agent.bind(str(path))
    taker = multiprocessing.get_context("fork").Process(target=_take, args=(agent,), daemon=True)
    taker.start()
    try:
        yield Session(_environment(folder, path))
    finally:
        taker.kill()


def main(folder: Path, steps: int) -> float:
    """Median microseconds of what a training loop calls in one step."""
    spent = []
    with session_in(folder) as session:
        assert session._context
        assert session._reporter
        session.restore({})
        session._saver = WithoutCopy(session._context, session._boundary, session._reporter)
        for step in range(1, WARM_UP + steps + 1):
            begun = time.perf_counter()
            with session.phase("forward"):
                pass
            with session.phase("backward"):
                pass
            session.step(step, loss=0.5, grad_norm=1.0)
            session.checkpoint({})
            spent.append(time.perf_counter() - begun)
            time.sleep(0.0002)  # a step takes longer than the agent needs for its messages
    return 1e6 * statistics.median(spent[WARM_UP:])


def _environment(folder: Path, path: Path) -> dict[str, str]:
    wire.Control(folder / "control", create=True)
    return os.environ | {
        wire.ENV_JOB: "bench",
        wire.ENV_EPOCH: "1",
        wire.ENV_SOCKET: str(path),
        wire.ENV_CONTROL: str(folder / "control"),
        wire.ENV_SHARDS: str(folder),
        "RANK": "0",
        "WORLD_SIZE": "1",
    }


def _take(agent: socket.socket) -> None:
    while True:
        agent.recv(65536)


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), int(sys.argv[2])))
