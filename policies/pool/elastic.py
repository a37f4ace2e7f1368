"""The number of machines that an elastic job trains on: fewer while machines are short, more when they are back.

A job shrinks by whole data-parallel replicas: the ranks that are left must be a multiple of those that tensor,
pipeline, context and expert parallelism need together. The restore then reshards the state
(:mod:`holdfast.policies.restore.restore_plan`). After ReCoVer and TorchPass, which train on with the replicas that
are left.
"""

from __future__ import annotations

from holdfast.models.base import Frozen
from holdfast.models.job import JobSpec


def largest(spec: JobSpec, at_most: int) -> int:
    """Return the largest allowed number of machines that is ``at_most``; 0: there is none."""
    if spec.elastic is None:
        return spec.machines if at_most >= spec.machines else 0
    sizes = range(min(at_most, spec.elastic.max), spec.elastic.min - 1, -1)
    fits = (n for n in sizes if not spec.parallelism.problem(n * spec.ranks_per_machine))
    return next(fits, 0)


def first(spec: JobSpec, standbys: int) -> int:
    """Return the number of machines that a job begins with, of ``standbys``; 0: there are too few."""
    begins = spec.elastic.start if spec.elastic else None
    return largest(spec, min(spec.machines, begins or spec.machines, standbys))


class Shrunk(Frozen):
    """The slots of a job that shrinks."""

    machines: int
    """Their number afterwards."""
    dropped: tuple[int, ...]
    """Slots that go, in order: those that no machine can fill, then the last ones of those that were left over."""


def shrink(spec: JobSpec, lacking: frozenset[int], standbys: int) -> Shrunk | None:
    """Return how a job goes on whose slots cannot all be filled; None: it cannot shrink, or it need not.

    Args:
        spec: the job.
        lacking: slots without a machine that serves the job.
        standbys: machines that can fill slots now.
    """
    serving = spec.machines - len(lacking)
    if spec.elastic is None or len(lacking) <= standbys:
        return None
    if not (size := largest(spec, serving + standbys)):
        return None
    # Slots that lack a machine go first, the highest first; then machines that the smaller size has no use for.
    order = [*sorted(lacking, reverse=True), *(s for s in reversed(range(spec.machines)) if s not in lacking)]
    return Shrunk(machines=size, dropped=tuple(sorted(order[: spec.machines - size])))


def grown(spec: JobSpec, standbys: int) -> int:
    """Return the number of machines that a job below its wanted size grows to by itself; its present one: it does not.

    Args:
        spec: the job.
        standbys: machines that it may take.
    """
    if spec.elastic is None or spec.machines >= spec.elastic.want:
        return spec.machines
    return max(spec.machines, largest(spec, min(spec.elastic.want, spec.machines + standbys)))
