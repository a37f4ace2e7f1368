"""Starts the agents of the local driver's machines, one by one or several with the training libraries loaded once."""

from __future__ import annotations

import contextlib
import json
import logging
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from holdfast.paths import ENV_AGENT

AgentStarter = Callable[[Sequence[str], Path, Mapping[str, str]], None]
"""Starts a command in a machine's folder with an environment; raises OSError or SubprocessError."""

LOADED_S = 60.0
"""How long the libraries may take to load; agents that waited as long for it load them themselves."""
ROOM = "/" + "-" * 4095
"""Stands for the machine's folder in the environment of what starts agents, and for a command: each writes its own."""
_ROOM_AGENT = ROOM + "-" * 256
"""Likewise for the folder and the agent's incarnation."""
_ALONE_S = 10.0
_ANSWER_S = 10.0

_log = logging.getLogger(__name__)


def start_alone(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
    """Start an agent that loads what it needs."""
    with log_of(folder).open("ab") as log:
        # `setsid --fork` gives the agent its own session and init as parent: no zombie of ours.
        subprocess.run(
            ["setsid", "--fork", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=environment,
            check=True,
            timeout=_ALONE_S,
        )


@contextlib.contextmanager
def starting_together(home: Path, environment: Mapping[str, str]) -> Iterator[AgentStarter]:
    """Load the training libraries once; yield what starts agents with them, or each alone where that fails."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "holdfast.agent.starter", "--home", str(home), ROOM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Sets of strings iterate alike on all machines.
        env={"PYTHONHASHSEED": "0", **environment, ENV_AGENT: _ROOM_AGENT},
        cwd=home,
        start_new_session=True,
        bufsize=0,
    )
    with process:
        try:
            yield _together(process) if _answer(process, LOADED_S) else start_alone
        finally:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ANSWER_S)
            process.kill()


def log_of(folder: Path) -> Path:
    """Return the path of an agent's log."""
    return folder / "agent.log"


def _together(process: subprocess.Popen[bytes]) -> AgentStarter:
    def start(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        order = {
            "command": list(command),
            "folder": str(folder),
            "log": str(log_of(folder)),
            "environment": dict(environment),
        }
        assert process.stdin is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")
        if not _answer(process, _ANSWER_S):
            raise OSError("what starts it did not answer")

    return start


def _answer(process: subprocess.Popen[bytes], within_s: float) -> bool:
    """Wait for one line of the starter; False when it ended, or took too long."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], within_s)[0]:
        return False
    if process.stdout.readline():
        return True
    assert process.stderr is not None
    _log.warning("agents are started one by one: %s", process.stderr.read().decode(errors="replace").strip())
    return False
