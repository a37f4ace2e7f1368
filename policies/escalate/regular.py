"""A failure that comes again after about as many steps each time: something grows in the job until it ends it. Pure.

Memory that is not freed, of the host or of a GPU, or open files. The steps between are progress, so that no ladder is
climbed and each failure is a first one, for ever. The job goes on from restart to restart; a person is to look.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from holdfast.models.base import Frozen
from holdfast.models.classes import IncidentClass, RecordedClass
from holdfast.policies.config.ladders import RegularPolicy


class FailedRun(Frozen):
    """An epoch that ended in a failure."""

    incident_class: RecordedClass
    what: str
    """Signal, exception or exit status of its root; empty: not known."""
    version: str
    """Of the code."""
    steps: int
    """Steps since its processes started."""
    from_outside: bool = False
    """Whether a signal from outside ended it."""

    @property
    def may_grow(self) -> bool:
        """Whether what ended it can be something that grew in its processes.

        A kill is that only where the kernel was short of memory: no one else knows how far the processes have got.
        """
        if self.incident_class == IncidentClass.HOST_PRESSURE:
            return True
        return self.incident_class == IncidentClass.JOB_CRASH and not self.from_outside


_LONGER = 2
"""An earlier version shows that it has no such leak in a run of so many times the steps."""


class Regular(Frozen):
    """The newest failures, all of one kind, each after about as many steps."""

    times: int
    least: int
    most: int
    what: str
    of_memory: bool
    """Whether memory ran out."""
    look: bool
    """Whether a person is to look now: at the policy's number, and at twice as many each time."""

    @property
    def steps(self) -> str:
        """After how many, in words."""
        return f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"

    @property
    def in_words(self) -> str:
        """The finding, and what to do next."""
        what = "memory" if self.of_memory else "something, such as memory or open files,"
        return (
            f"{self.what} after {self.steps} steps, {self.times} times in a row: {what} grows from step to step (a "
            "leak?); a restart frees it for as long again. Look at what the script keeps between steps"
        )


def find(runs: Sequence[FailedRun], policy: RegularPolicy) -> Regular | None:
    """Return what is regular about the newest of ``runs`` (oldest first); None: nothing is.

    Runs that made no steps are no such failure: the ladder is climbed for them.
    """
    alike: list[FailedRun] = []
    for run in reversed(runs):
        first = alike[0] if alike else run
        if not (run.may_grow and run.steps and run.what and _same(run, first)):
            break
        if not _even([*alike, run], policy.within):
            break
        alike.append(run)
    if len(alike) < policy.count:
        return None
    steps, newest = [run.steps for run in alike], alike[0]
    return Regular(
        times=len(alike),
        least=min(steps),
        most=max(steps),
        what=newest.what,
        of_memory=newest.incident_class == "host_pressure" or "outofmemory" in newest.what.lower(),
        look=_due(len(alike), policy.look),
    )


def came_with(found: Regular, running: str, before: str, longest: int) -> str:
    """Return why it came with the running code version; empty: it need not have.

    Args:
        found: what is regular.
        running: the version.
        before: the one that would be gone back to.
        longest: most steps that ``before`` made from one start of its processes.
    """
    if longest < _LONGER * found.most:
        return ""
    return (
        f"{found.what} comes after {found.steps} steps of version {running}, {found.times} times in a "
        f"row, and {before} made {longest} from one start"
    )


def _same(one: FailedRun, other: FailedRun) -> bool:
    return (one.incident_class, one.what, one.version) == (other.incident_class, other.what, other.version)


def _even(runs: Sequence[FailedRun], within: float) -> bool:
    steps = [run.steps for run in runs]
    middle = median(steps)
    return all(abs(each - middle) <= within * middle for each in steps)


def _due(times: int, first: int) -> bool:
    while first < times:
        first *= 2
    return times == first
