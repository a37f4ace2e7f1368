"""Launchers that restart a job after a rank died, each started as its own documentation directs.

They diagnose nothing and keep no checkpoint in memory: what is timed is the way to the restarted job's first step.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.steps import Steps
from tests.e2e.waiting import free_ports

ROOT = Path(__file__).parents[1]
VENV = ROOT / ".bench-venv"
_END_S = 10.0
_CRASHES = 100  # restarts that a launcher may do


@dataclass(frozen=True)
class Peer:
    """One launcher."""

    name: str
    program: str
    options: tuple[str, ...] = ("--standalone",)
    master: tuple[str, ...] = ()
    """Arguments of Python for a process that it needs beside it; ``PORT`` is replaced."""

    @property
    def missing(self) -> str | None:
        """Why it cannot run; None when it can."""
        path = VENV / "bin" / self.program
        if not path.exists():
            return f"{self.name}: {path} is missing (`make bench-peers` shows why)"
        shown = subprocess.run([path, "--help"], capture_output=True, text=True, check=False)
        if shown.returncode == 0:
            return None
        return (
            f"{self.name}: {path} does not start: {(shown.stderr.strip().splitlines() or ['no message'])[-1]}"
        )

    def command(self, ranks: int, script: Path, args: tuple[str, ...]) -> list[str]:
        """The whole command line."""
        return [
            str(VENV / "bin" / self.program),
            f"--nproc_per_node={ranks}",
            f"--max_restarts={_CRASHES}",
            "--monitor_interval=0.1",
            *self.options,
            str(script),
            *args,
        ]

    @contextlib.contextmanager
    def running(self, folder: Path, ranks: int, script: Path, args: tuple[str, ...]) -> Iterator[PeerRun]:
        """Run the job in ``folder`` (new, empty); nothing of it is left afterwards."""
        port = free_ports(1)
        env = environment(folder) | {"DLROVER_MASTER_ADDR": f"127.0.0.1:{port}"}
        with contextlib.ExitStack() as stack:
            if self.master:
                words = [str(port) if word == "PORT" else word for word in self.master]
                stack.enter_context(process([str(VENV / "bin" / "python"), *words], folder, env))
            launched = stack.enter_context(process(self.command(ranks, script, args), folder, env))
            yield PeerRun(launched, Steps(folder / "steps.jsonl"), folder / "log")


@dataclass(frozen=True)
class PeerRun:
    """A job under a launcher."""

    process: subprocess.Popen[bytes]
    steps: Steps
    log: Path

    def why_dead(self) -> str | None:
        """None while the launcher runs."""
        status = self.process.poll()
        if status is None:
            return None
        tail = self.log.read_text(errors="replace")[-1500:]
        return f"{shlex.join(map(str, self.process.args))} ended with status {status}:\n{tail}"  # type: ignore[arg-type]


_LOCAL_JOB = ("--job_name", "bench", "--platform", "local")
PEERS = (
    Peer("torchrun", "torchrun"),
    Peer("NVRx ft_launcher", "ft_launcher", ("--standalone", "--ignore-missing-fault-tol-cfg")),
    # What `--standalone` would start, by a call that torch 2.13 no longer takes: started here instead.
    Peer(
        "dlrover-run",
        "dlrover-run",
        ("--nnodes=1",),
        master=("-m", "dlrover.python.master.main", "--port", "PORT", "--node_num", "1", *_LOCAL_JOB),
    ),
)


def available() -> list[Peer]:
    """Those that can run here; prints which cannot, and why."""
    here = []
    for peer in PEERS:
        if why := peer.missing:
            print(f"missing peer {why}", file=sys.stderr, flush=True)
        else:
            here.append(peer)
    return here


def environment(folder: Path) -> dict[str, str]:
    """For the processes of a job in ``folder``."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return env | {
        "BENCH_STEPS": str(folder / "steps.jsonl"),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder),
        # torch 2.13: with the shared store, a restarted gloo job reads the addresses of the dead one, fails, and
        # needs a second restart. Without it, all launchers restart at the first attempt.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


@contextlib.contextmanager
def process(command: list[str], folder: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that, with all that it started, does not outlive the block."""
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        _end(process, folder)


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill all that was started in ``folder``, whatever became of its parents and whenever it is interrupted.

    Raises:
        TimeoutError: a process survives.
    """
    deadline = time.monotonic() + _END_S
    while left := [each for each in psutil.process_iter() if _is_of(each, folder)]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"these processes of {folder} do not die: {left}")
        for each in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(left, timeout=1)
    process.wait(_END_S)


def _is_of(process: psutil.Process, folder: Path) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get("TMPDIR") == str(folder)
    return False
