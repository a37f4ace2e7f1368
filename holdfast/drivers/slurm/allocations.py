"""Our single-node allocations in Slurm: how one is asked for, looked at and ended."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from holdfast.drivers.slurm import holdings, listing, sbatch_options
from holdfast.drivers.slurm.commands import SlurmCommands
from holdfast.drivers.slurm.listing import Allocation
from holdfast.drivers.slurm.nodes import SlurmNodes
from holdfast.drivers.slurm.record import HeldNode
from holdfast.errors import RefusedError, SettingsError, UnavailableError, UnknownError

POLL_S, POLL_MOST_S = 0.05, 1.0
_JOB_ID = re.compile(r"^(\d+)(?:;\S+)?$", re.MULTILINE)


class Allocations:
    """Slurm jobs of this site: all that have its job name."""

    def __init__(
        self,
        slurm: SlurmCommands,
        nodes: SlurmNodes,
        *,
        home: Path,
        job_name: str,
        script: Path,
        options: Sequence[str],
        kill_s: float,
    ) -> None:
        """``options`` are the site's own for sbatch; a job that is to end has ``kill_s`` for it."""
        self._slurm, self._nodes = slurm, nodes
        self._home, self._job_name, self._script, self._options = home, job_name, script, options
        self._kill_s = kill_s

    def all(self, *only: str) -> dict[int, Allocation]:
        """Return our Slurm jobs by id; with options ``only`` those that squeue shows with them."""
        listed = self._slurm(
            "squeue",
            "--noheader",
            "--all",
            "--states=all",
            f"--name={self._job_name}",
            f"--format={listing.JOB_FORMAT}",
            *only,
        )
        return {job.id: job for job in listing.allocations(listed)}

    def submit(self, comment: str, options: Sequence[str]) -> int:
        """Submit one more allocation; return its job id. After no answer the job is looked up before a retry."""
        token = f"{comment}#{uuid.uuid4().hex[:12]}"
        site_comment = sbatch_options.value_of(self._options, "--comment")
        command = [
            "sbatch",
            "--parsable",
            f"--job-name={self._job_name}",
            "--nodes=1",
            "--ntasks=1",
            "--exclusive",
            "--no-requeue",
            "--export=ALL",
            "--output=/dev/null",
            f"--chdir={self._home}",
            *self._options,
            *options,
            # Behind the site's own, whose text it has as well: jobs are known by it.
            f"--comment={' '.join([token, *([site_comment] if site_comment else [])])}",
            str(self._script),
        ]

        def once() -> int:
            for job in self.all().values() if tried else ():
                if job.comment.startswith(token):
                    return job.id
            tried.append(True)
            printed = self._slurm.once(*command)
            if not (found := _JOB_ID.findall(printed)):
                raise UnavailableError(f"sbatch printed no job id, but {printed.strip()[:200]!r}")
            return int(found[-1])  # the filters and wrappers of some sites print more

        tried: list[bool] = []
        return self._slurm.patiently(once)

    def end(
        self, machine: str, job: int, reason: str, *, beside: Sequence[str], may_give_up: bool = True
    ) -> None:
        """End the job and all its processes: by its own script, else by Slurm, else by giving the node up.

        Without ``may_give_up`` only a node that is dead is given up. ``beside`` are the machines in service.
        """
        if self.is_over(machine, job):
            return
        steps: list[Callable[[], object]] = [
            # The batch script's trap kills and wipes everything at once; slurmd alone would miss orphans.
            lambda: self._slurm("scancel", "--batch", "--signal=USR1", str(job)),
            lambda: self._slurm("scancel", str(job)),
            lambda: self._nodes.set_down(machine, reason),
        ]
        dead = self._nodes.is_dead(machine, beside=beside)
        if dead:
            steps = steps[1:]
            steps.reverse()
        elif not may_give_up:
            steps = steps[:2]
        for step in steps:
            if self.is_over(machine, job):
                return
            try:
                step()
            except (RefusedError, SettingsError, UnknownError):
                continue
            if self.wait_over(machine, job):
                return
        raise UnavailableError(
            f"machine {machine}: Slurm job {job} did not end within {self._kill_s:g} s, and its node "
            + (
                "cannot be set down (that takes Slurm's operator rights)"
                if dead or may_give_up
                else "is not known to be dead"
            )
            + ": its processes may still run, or Slurm's epilog."
        )

    def wait_over(self, machine: str, job: int) -> bool:
        """Return whether the job is over, at the latest after ``kill_s``."""
        return any(self.is_over(machine, job) for _ in looks(self._kill_s))

    def is_over(self, machine: str, job: int) -> bool:
        """Return whether the machine's job has ended, or is gone."""
        # Asked again and again: for one job slurmctld sends no more than that, for all of a site those of the cluster.
        try:
            jobs = self.all(f"--jobs={job}")
        except UnknownError:
            return True  # forgotten since
        return holdings.ended(machine, HeldNode(job=job), jobs)


def looks(for_s: float) -> Iterator[None]:
    """Yield at least once, then at growing intervals: slurmctld has other clients to answer."""
    deadline, pause = time.monotonic() + for_s, POLL_S
    while True:
        yield
        if time.monotonic() > deadline:
            return
        time.sleep(pause)
        pause = min(2 * pause, POLL_MOST_S)
