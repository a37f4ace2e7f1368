"""Slurm's commands, scripted: answers by name, and a queue that starts jobs at once."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from holdfast.drivers.slurm import SlurmDriver
from holdfast.drivers.slurm.commands import CommandAnswer
from holdfast.drivers.slurm_settings import SlurmSettings
from holdfast.settings import Settings

FINE = CommandAnswer(status=0)


class Scripted:
    """Answers each command by its name, and remembers all."""

    def __init__(self, **answers: Callable[[Sequence[str]], CommandAnswer]) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []
        self.env: Mapping[str, str] = {}

    def __call__(self, command: Sequence[str], *, env: Mapping[str, str], timeout_s: float) -> CommandAnswer:
        self.asked.append(list(command))
        self.env = env
        return self.answers.get(command[0], lambda _: FINE)(command)

    def count(self, name: str) -> int:
        """How often a command was called."""
        return sum(command[0] == name for command in self.asked)


class Queue:
    """squeue and sbatch of a cluster that starts a job at once on the next free node."""

    def __init__(self, nodes: int = 4, lost_answers: int = 0) -> None:
        self.jobs: dict[int, tuple[str, str, str]] = {}
        self.free = [f"node{i}" for i in range(1, nodes + 1)]
        self.lost_answers = lost_answers
        self.gone: tuple[str, ...] = ()

    def sbatch(self, command: Sequence[str]) -> CommandAnswer:
        """Takes the job; the answer may get lost."""
        (comment,) = [word.partition("=")[2] for word in command if word.startswith("--comment=")]
        if any(word in (f"--exclude={name}", f"--nodelist={name}") for word in command for name in self.gone):
            message = "sbatch: error: Batch job submission failed: Invalid node name specified"
            return CommandAnswer(status=1, err=message)
        state, node = ("RUNNING", self.free.pop(0)) if self.free else ("PENDING", "")
        self.jobs[len(self.jobs) + 1] = (state, node, comment)
        if self.lost_answers:
            self.lost_answers -= 1
            raise subprocess.TimeoutExpired("sbatch", 15)
        return CommandAnswer(status=0, out=f"{len(self.jobs)};lab\n")

    def squeue(self, command: Sequence[str]) -> CommandAnswer:
        """All jobs."""
        rows = [f"{i}|{state}|{node}|None|{comment}" for i, (state, node, comment) in self.jobs.items()]
        return CommandAnswer(status=0, out="\n".join(rows))

    def sinfo(self, command: Sequence[str]) -> CommandAnswer:
        """All nodes that are asked for are well; those that are gone are left out."""
        asked = [word.partition("=")[2] for word in command if word.startswith("--nodes=")]
        names = asked[0].split(",") if asked else self.free
        known = [name for name in names if name not in self.gone]
        return CommandAnswer(status=0, out="\n".join(f"{name}|idle|none" for name in known))

    def forget(self, *gone: str) -> None:
        """Restart slurmctld with a slurm.conf without these nodes: answers as of 22.05."""
        self.gone = gone
        for i, (_, node, comment) in self.jobs.items():
            if node in gone:
                self.jobs[i] = ("NODE_FAIL", node, comment)

    def scontrol(self, command: Sequence[str]) -> CommandAnswer:
        """Refuses what names a node that is gone."""
        if any(word in (name, f"nodename={name}") for word in command for name in self.gone):
            return CommandAnswer(status=1, err="slurm_update error: Invalid node name specified")
        return FINE

    def runner(self) -> Scripted:
        """To run commands with."""
        return Scripted(sbatch=self.sbatch, squeue=self.squeue, sinfo=self.sinfo, scontrol=self.scontrol)


def driver(home: Path, run: Scripted, **settings: object) -> SlurmDriver:
    own = SlurmSettings.model_validate({"start_s": 0.01, "kill_s": 0.01, "patience_s": 0.3, **settings})
    return SlurmDriver(Settings(home=home), own, run=run, agent=("agent",))
