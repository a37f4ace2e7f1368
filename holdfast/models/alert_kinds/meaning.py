"""Meaning of a signal: the incident that it opens, when it does, and the failures that it explains."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from holdfast.models.base import Frozen
from holdfast.models.classes import IncidentClass


class Acts(StrEnum):
    """When a signal opens an incident."""

    ALONE = "alone"
    """At once."""
    AGAIN = "again"
    """At the second on one machine within the policy's window; the first is noted."""
    BESIDE = "beside"
    """Only with ranks that ended or hang, or a pace that dropped: it explains them."""
    NEVER = "never"
    """Evidence for people."""


class Beside(StrEnum):
    """Failures that a signal that acts :attr:`Acts.BESIDE` others explains."""

    EXIT = "exit"
    """The exit of a rank, however it ended."""
    KILLED = "killed"
    """A rank that was killed by SIGKILL."""
    RAISED = "raised"
    """A rank that raised an exception that is no error of programming."""
    HANG = "hang"
    SLOW = "slow"


class Meaning(Frozen):
    """The meaning of a signal."""

    means: IncidentClass
    acts: Acts
    confidence: float = 0.9
    beside: frozenset[Beside] = frozenset()
    same_machine: bool = True
    """It explains only what happened on its own machine (a service or a switch explains all of them)."""


def alone(
    means: IncidentClass,
    confidence: float = 0.9,
    beside: Collection[Beside] = (),
    *,
    same_machine: bool = True,
) -> Meaning:
    """Return the meaning of a signal that opens an incident at once."""
    return Meaning(
        means=means,
        acts=Acts.ALONE,
        confidence=confidence,
        beside=frozenset(beside),
        same_machine=same_machine,
    )


def again(means: IncidentClass, *beside: Beside) -> Meaning:
    """Return the meaning of a signal that opens an incident at the second."""
    return Meaning(means=means, acts=Acts.AGAIN, confidence=0.8, beside=frozenset(beside))


def explains(
    means: IncidentClass, *beside: Beside, confidence: float = 0.8, same_machine: bool = True
) -> Meaning:
    """Return the meaning of a signal that opens no incident, but explains failures ``beside`` it."""
    return Meaning(
        means=means,
        acts=Acts.BESIDE,
        confidence=confidence,
        beside=frozenset(beside),
        same_machine=same_machine,
    )


NEVER = Meaning(means=IncidentClass.JOB_CRASH, acts=Acts.NEVER, confidence=0.0)
"""Evidence for people, or judged by rules of its own."""
