"""The store where the ranks of an epoch meet, in a separate process so that it outlives any rank."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from holdfast.agent.ranks.forkserver import ForkServer
from holdfast.errors import UnavailableError
from holdfast.listen import listen, many_files

_OPEN_S = 12.0
_POLL_S = 0.002
_BACKLOG = 2048
"""As torch's own: thousands of ranks connect at once. The kernel's limit (net.core.somaxconn) may be lower."""


def serve(answer: str, host: str) -> None:
    """Host a TCPStore on a free port, write the port to a file, run until killed: the body of the store's process.

    Listens on ``host`` alone, as the agent does: a store that binds its port itself takes every address of the machine.
    """
    import torch.distributed as dist  # noqa: PLC0415  (the agent itself never loads torch)

    many_files()  # each rank keeps connections: with the usual 1,024 a thousand ranks never meet
    listener = listen(host, 0, backlog=_BACKLOG)
    port = int(listener.getsockname()[1])
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host, port, None, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    new = f"{answer}.new"
    Path(new).write_text(str(store.port))
    os.rename(new, answer)
    while True:
        signal.pause()


async def open_store(forks: ForkServer, host: str) -> tuple[ForkServerProcess, int]:
    """Start the store; return its process and port.

    Raises:
        UnavailableError: it did not come up in time.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-store-") as folder:
        answer = Path(folder) / "port"
        process = await forks.run_soon(serve, (str(answer), host))
        deadline = time.monotonic() + _OPEN_S
        while process.exitcode is None and time.monotonic() < deadline:
            if answer.exists():
                return process, int(answer.read_text())
            await asyncio.sleep(_POLL_S)
    reason = (
        f"no answer in {_OPEN_S:.0f} s" if process.exitcode is None else "its process died: see agent.log"
    )
    process.kill()
    raise UnavailableError(f"rendezvous store on {host} did not start: {reason}")
