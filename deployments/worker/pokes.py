"""The worker's Unix socket: one line, the id of a flow run, starts that run at once.

Lines and answers: ``<flow run id>`` -> ``ok``; ``status`` -> one line of JSON (``connected``, ``warm``,
``running``); anything else -> ``error: ...``. Only the owner of HOME can open it.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from uuid import UUID

from holdfast import private
from holdfast.deployments.worker.worker import HoldfastWorker

STATUS = "status"


async def listen(path: Path, worker: HoldfastWorker) -> asyncio.Server:
    """Open the socket; one that a dead worker left behind is replaced."""
    private.folder(path.parent)
    path.unlink(missing_ok=True)

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(f"{_answer(line.decode(errors='replace').strip(), worker)}\n".encode())
                await writer.drain()
        except (ConnectionError, ValueError):
            # The other side left without its answer, or sent a line without an end.
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(converse, path)
    path.chmod(0o600)
    return server


def _answer(line: str, worker: HoldfastWorker) -> str:
    if line == STATUS:
        return json.dumps(worker.status)
    try:
        worker.poke(UUID(line))
    except ValueError:
        return f"error: {line[:80]!r} is no flow run id"
    return "ok"
