"""A real Slurm cluster of several nodes on this host: Debian's daemons, in a folder of its own."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.waiting import free_ports

_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_NEEDED = ("slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scontrol", "scancel", "munged")

_CONF = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge/s,cred_expire=5
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd-%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=500
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
SlurmdParameters=config_overrides
MessageTimeout=30
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait=30
ReturnToService=1
NodeName=node[1-{n}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=16 Sockets=1 \
CoresPerSocket=16 ThreadsPerCore=1 RealMemory=1000 Feature=h100 State=UNKNOWN
NodeName=service NodeHostname={host} NodeAddr=127.0.0.1 Port={service} CPUs=16 Sockets=1 CoresPerSocket=16 \
ThreadsPerCore=1 RealMemory=16000 State=UNKNOWN
PartitionName=train Nodes=node[1-{n}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
PartitionName=services Nodes=service MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Programs that this host lacks to run a cluster; empty: none."""
    absent = [name for name in _NEEDED if shutil.which(name, path=_PATH) is None]
    return f"{', '.join(absent)} not found: apt-get install slurm-wlm munge" if absent else ""


class Cluster:
    """``n`` nodes called node1, node2, ... for training, and one for services, in a partition of its own.

    Nothing of the system's own Slurm is touched.
    """

    def __init__(self, root: Path, n: int) -> None:
        self.root = root
        self.nodes = tuple(f"node{i}" for i in range(1, n + 1))
        self.conf = root / "slurm.conf"
        self.env = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(self.conf)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, timeout_s: float = 180) -> Cluster:
        """Until every node is idle."""
        for folder in (
            "munge",
            "state",
            "log",
            "run",
            *(f"spool/{name}" for name in (*self.nodes, "service")),
        ):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        for folder in (self.root, self.root / "munge"):
            folder.chmod(0o755)
        host, port = (
            socket.gethostname().partition(".")[0],
            free_ports(len(self.nodes) + 2, 17_000, 3_000, 21_000),
        )
        known: dict[str, Any] = {
            "host": host,
            "user": getpass.getuser(),
            "root": self.root,
            "n": len(self.nodes),
        }
        ports = {
            "port": port,
            "first": port + 1,
            "last": port + len(self.nodes),
            "service": port + len(self.nodes) + 1,
        }
        self._known = known | ports
        self.conf.write_text(_CONF.format(**self._known))
        self._start_munge()
        self.start_controller()
        for name in (*self.nodes, "service"):
            self.start_node(name)
        self._wait(lambda: self.states() == dict.fromkeys(self.nodes, "idle"), timeout_s, "all nodes idle")
        return self

    def stop(self) -> None:
        """End all daemons and all that runs in jobs."""
        with suppress(subprocess.SubprocessError):
            if self._daemons["slurmctld"].poll() is None:
                jobs = self.ask("squeue", "-h", "-o", "%A").split()
                self.ask("scancel", "--signal=KILL", "--full", *jobs) if jobs else None
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()
        self._kill({"SLURM_CONF": str(self.conf)})

    def ask(self, *command: str) -> str:
        """Output of one of Slurm's commands."""
        done = subprocess.run(command, env=self.env, check=True, timeout=90, capture_output=True, text=True)
        return done.stdout

    def states(self) -> dict[str, str]:
        """State of each node for training, as sinfo has it; empty while slurmctld does not answer."""
        try:
            lines = self.ask("sinfo", "-h", "-N", "-p", "train", "-o", "%N %T").split()
        except subprocess.SubprocessError:
            return {}
        return dict(zip(lines[::2], lines[1::2], strict=True))

    def flags(self, node: str) -> set[str]:
        """All flags in the node's state, such as DOWN, DRAIN and NOT_RESPONDING."""
        fields = self.ask("scontrol", "--oneliner", "show", "node", node).split()
        (state,) = [field.partition("=")[2] for field in fields if field.startswith("State=")]
        return set(state.split("+"))

    def reason(self, node: str) -> str:
        """Why the node is drained or down."""
        return self.ask("sinfo", "-h", "-N", "-n", node, "-o", "%E").strip()

    def update(self, node: str, *changes: str) -> None:
        """As its operator."""
        self.ask("scontrol", "update", f"nodename={node}", *changes)

    @contextmanager
    def without_the_last_node(self) -> Iterator[str]:
        """Within it slurm.conf, and slurmctld, know nothing of that node; afterwards all is as before."""
        *_, name = self.nodes
        fewer = {"n": len(self.nodes) - 1, "last": self._known["last"] - 1}
        try:
            self._reconfigure(self._known | fewer)
            yield name
        finally:
            self._reconfigure(self._known)

    def _reconfigure(self, known: dict[str, Any]) -> None:
        self.stop_controller()
        self.conf.write_text(_CONF.format(**known))
        self.start_controller()
        wanted = set(self.nodes[: known["n"]])
        self._wait(lambda: set(self.states()) == wanted, 60, f"slurmctld knows {sorted(wanted)}")

    def start_controller(self) -> None:
        """Start slurmctld."""
        self._spawn("slurmctld", "slurmctld", "-D", "-f", str(self.conf))

    def stop_controller(self) -> None:
        """End slurmctld. Not SIGKILL: within 5 s of an allocation it may not have saved that yet."""
        self._daemons["slurmctld"].terminate()
        self._daemons["slurmctld"].wait(60)

    def start_node(self, name: str) -> None:
        """Start a node's slurmd."""
        self._spawn(name, "slurmd", "-D", "-N", name, "-f", str(self.conf))

    def kill_daemon(self, name: str) -> None:
        """SIGKILL a node's slurmd; what runs there goes on."""
        self._daemons[name].kill()
        self._daemons[name].wait()

    def kill_node(self, name: str) -> None:
        """The node loses power: its slurmd and everything that runs there are dead at once."""
        self.kill_daemon(name)
        self._kill({"SLURM_CONF": str(self.conf), "SLURMD_NODENAME": name})

    def _start_munge(self) -> None:
        folder = self.root / "munge"
        key = folder / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        files = [f"--{what}-file={folder / what}" for what in ("pid", "log", "seed")]
        self._spawn("munged", "munged", "-F", f"--key-file={key}", f"--socket={folder / 's'}", *files)
        self._wait((folder / "s").exists, 120, "munged listens")

    def _spawn(self, name: str, *command: str) -> None:
        with (self.root / "log" / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                command,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )

    def _wait(self, condition: object, timeout_s: float, what: str) -> None:
        assert callable(condition)
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                log = self.root / "log" / "slurmctld.log"
                tail = log.read_text()[-3000:] if log.exists() else ""
                raise RuntimeError(f"not within {timeout_s:g} s: {what}; {self.states()}\n{tail}")
            time.sleep(0.05)

    def _kill(self, marks: dict[str, str]) -> None:
        """SIGKILL all processes that were started with ``marks`` in their environment, and the slurmstepds of those."""
        wanted = {f"{key}={value}".encode() for key, value in marks.items()}
        while True:
            found = []
            for process in psutil.process_iter():
                with suppress(OSError, psutil.Error):
                    mine = wanted <= set(Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"))
                    if mine and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                        parent = process.parent()
                        found += [
                            process,
                            *([parent] if parent and parent.name().startswith("slurmstepd") else []),
                        ]
            if not found:
                return
            for process in found:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            psutil.wait_procs(found, timeout=0.1)
