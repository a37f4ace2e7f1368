"""The store where the ranks of an epoch meet, in a process of its own so that it outlives any rank."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from holdfast.agent.forkserver import ForkServer
from holdfast.errors import UnavailableError

_OPEN_S = 12.0


def serve(answer: Connection, host: str) -> None:
    """Body of the store's process: host a TCPStore on a free port, say which, stay until killed."""
    import torch.distributed as dist  # noqa: PLC0415  (the agent itself never loads torch)

    store = dist.TCPStore(  # type: ignore[attr-defined]
        host, 0, None, is_master=True, wait_for_workers=False
    )
    answer.send(store.port)
    answer.close()
    while True:
        signal.pause()


async def open_store(forks: ForkServer, host: str) -> tuple[ForkServerProcess, int]:
    """Start the store; returns its process and port.

    Raises:
        UnavailableError: it did not come up in time.
    """
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = await forks.fork_soon(serve, (theirs, host))
    theirs.close()
    try:
        if await asyncio.to_thread(ours.poll, _OPEN_S):
            return process, int(ours.recv())
        reason = f"no answer in {_OPEN_S:.0f} s"
    except (EOFError, OSError):
        reason = "its process died: see agent.log"
    finally:
        ours.close()
    process.kill()
    raise UnavailableError(f"rendezvous store on {host} did not start: {reason}")
