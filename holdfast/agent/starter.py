"""Start the agents of several machines on one host, with the training libraries and the agent's own loaded once.

A fork server loads torch and what belongs to it: two to three seconds of a processor, a quarter of a gigabyte; an agent
takes over a second. Where machines are process trees of one host, each would do so side by side. This program loads the
same modules once, and for each line of its input (:class:`AgentOrder`) forks a process that forks the machine's fork
server and then becomes the agent. So the fork server is the agent's own child, and their pages are shared until they
are written.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import multiprocessing.forkserver
import os
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import settings
from holdfast.agent import __main__ as agent_main
from holdfast.agent import shown_process
from holdfast.agent.ranks.forkserver import ADDRESS, ADOPTING, ENV_GIVEN, GivenForkServer, modules
from holdfast.models import incarnation
from holdfast.paths import ENV_AGENT, ENV_MACHINE_DIR, of_agent

READY = b"ready\n"
AGENT = (sys.executable, "-P", "-m", "holdfast.agent")
"""The command of an agent that needs no program of its own: this process has its modules."""
_BACKLOG = 128
_AT_START = ("LD_", "PYTHON", "MALLOC_", "GLIBC_")
"""Variables that are read when a program starts: with others than this one's, the agent is executed."""
_BEGAN = dict(os.environ)


@dataclass(frozen=True)
class AgentOrder:
    """One agent to start."""

    command: list[str]
    folder: str
    """The machine's, in which the agent runs and writes its log."""
    log: str
    environment: dict[str, str]


def main() -> None:
    """Load, say so, and start agents until the input ends; each is answered by its pid."""
    parser = argparse.ArgumentParser("holdfast.agent.starter", description=__doc__)
    parser.add_argument("--home", required=True, type=Path)
    parser.add_argument(
        "room", nargs="?", help="room for an agent's command line, as the list of processes shows it"
    )
    names = modules(settings.load(parser.parse_args().home).preload_modules)
    for name in [*names, agent_main.MODULES]:
        # As the fork server does: a missing module is met by the rank that needs it.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    os.write(1, READY)
    for line in _lines():
        os.write(1, b"%d\n" % _start(AgentOrder(**json.loads(line)), names))


def _lines() -> Iterator[bytes]:
    """Read without a buffer, which every fork would inherit."""
    rest = b""
    while more := os.read(0, 1 << 16):
        *whole, rest = (rest + more).split(b"\n")
        yield from whole


def _start(order: AgentOrder, names: Sequence[str]) -> int:
    if pid := os.fork():
        return pid
    try:
        os.setsid()
        _redirect(order.log)
        os.chdir(order.folder)
        life = incarnation.fresh(order.environment)
        shown_process.environment(
            {ENV_MACHINE_DIR: order.folder, ENV_AGENT: of_agent(Path(order.folder), life)}
        )
        environment = order.environment | {ENV_GIVEN: _fork_server(names, life).dumped()}
        if not _becomes_agent(order):
            os.execve(order.command[0], order.command, environment)
        os.environ.clear()
        os.environ.update(environment)
        shown_process.command(order.command)
        agent_main.run_and_exit(order.command[len(AGENT) :])
    except BaseException:  # it must never return into the loop above
        traceback.print_exc()
        os._exit(1)


def _becomes_agent(order: AgentOrder) -> bool:
    """Return whether the agent can run in a fork of this process as it would in a program of its own."""
    own, wanted = (
        {name: value for name, value in variables.items() if name.startswith(_AT_START)}
        for variables in (_BEGAN, order.environment)
    )
    # All agents iterate over sets alike; what starts this program has asked for that.
    return tuple(order.command[: len(AGENT)]) == AGENT and {"PYTHONHASHSEED": "0", **wanted} == own


def _redirect(log: str) -> None:
    nothing, output = (
        os.open(os.devnull, os.O_RDONLY),
        os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
    )
    os.dup2(nothing, 0)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)


def _fork_server(names: Sequence[str], life: str) -> GivenForkServer:
    """Fork this machine's server, as ``multiprocessing`` would have started it; the agent inherits the rest."""
    alive_r, alive_w = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(ADDRESS)
        listener.bind(ADDRESS)
        os.chmod(ADDRESS, 0o600)
        listener.listen(_BACKLOG)
        if not (pid := os.fork()):
            os.close(alive_w)
            _serve(listener.detach(), alive_r)
    os.close(alive_r)
    os.set_inheritable(alive_w, True)
    return GivenForkServer(pid, alive_w, tuple(names), life)


def _serve(listener: int, alive: int) -> Any:
    status = 1
    try:
        multiprocessing.forkserver.main(listener, alive, [ADOPTING])
    except SystemExit:
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
