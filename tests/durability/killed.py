"""A process that forks others, each of which works until its failpoint kills it: ``python -m tests.durability.killed``.

It imports everything once and has one thread, so that a case costs milliseconds and a fork is safe. Reads one JSON
object per line (what to do, where, where to die), and answers with the wait status of each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from holdfast import failpoint
from holdfast.storage.objects import s3_client
from holdfast.storage.objects.s3 import S3Store
from tests.durability import s3_work, work

ACKNOWLEDGED = "acknowledged"


class Forks:
    """Client of such a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, name: str, folder: Path, where: str, store: dict[str, str] | None = None) -> int:
        """Do the work ``name`` in ``folder`` in a process that dies at ``where``; its exit code, negative: a signal."""
        assert self._process.stdin
        assert self._process.stdout
        order = {"name": name, "folder": str(folder), "where": where, "store": store}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return os.waitstatus_to_exitcode(int(self._process.stdout.readline()))


@contextmanager
def forks() -> Iterator[Forks]:
    """Start it; it ends with the block."""
    command = [sys.executable, "-m", "tests.durability.killed"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Forks(process)
        assert process.stdin
        process.stdin.close()


def acknowledged(folder: Path) -> list[str]:
    """Lines that the killed process had acknowledged."""
    path = _acknowledged(folder)
    return path.read_text().splitlines() if path.exists() else []


def _acknowledged(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.{ACKNOWLEDGED}")


def _work(order: dict[str, Any]) -> None:
    folder = Path(order["folder"])
    known = s3_work.all_work(S3Store(**order["store"])) if order["store"] else work.ALL
    failpoint.arm(order["where"])
    with _acknowledged(folder).open("a") as log:

        def acknowledge(line: str) -> None:
            print(line, file=log, flush=True)

        known[order["name"]].do(folder, acknowledge)


def serve(orders: IO[str]) -> None:
    """Until there are no more."""
    s3_client.get_ready()
    for line in orders:
        pid = os.fork()
        if pid == 0:
            try:
                _work(json.loads(line))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        sys.stdout.write(f"{os.waitpid(pid, 0)[1]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(sys.stdin)
