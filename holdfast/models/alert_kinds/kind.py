"""One row per kind of alert: its scope, its evidence, its meaning, its thresholds and its line in the docs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from holdfast.models.alert_kinds.meaning import Meaning


class SignalScope(StrEnum):
    """The thing that a signal is about."""

    RANK = "rank"
    GPU = "gpu"
    NETWORK = "network"
    """A port of a machine. It comes and goes by itself, so its repetition is evidence: each time is a signal."""
    HOST = "host"
    MACHINE = "machine"
    JOB = "job"
    """A job as a whole, or what its machines share."""
    PERSON = "person"
    """Asked for by a person: kept and done later rather than swallowed by another incident."""


OF_A_MACHINE = frozenset({SignalScope.GPU, SignalScope.NETWORK, SignalScope.HOST, SignalScope.MACHINE})
"""True for as long as this incarnation of the machine serves the job, in any epoch."""


class AtALook(StrEnum):
    """Whether an inspection, which looks once, counts a bad sign as a failure of the machine."""

    IMMEDIATE = "immediate"
    """Where the sign needs no second bad look."""
    ALWAYS = "always"
    """Bad enough at a single look."""
    NEVER = "never"
    """No reason to do without the machine."""


@dataclass(frozen=True)
class Kind:
    """The row of a kind."""

    name: str
    scope: SignalScope
    says: str
    """One sentence for the docs."""
    meaning: Meaning
    """The incident that it opens; :mod:`holdfast.policies.classify.meaning` has what evidence changes of it."""
    precedence: int
    """Place among signals that explain the same thing, each its own: the more certain, the lower."""
    evidence: str = ""
    """Names of its evidence. Signs of a machine also have ``device`` (``GPU 3``, ``mlx5_0/1``, ``/data``; where there
    is one), ``value`` and ``limit`` (numbers where the check has them, in the unit that ``detail`` names) and
    ``detail`` (one sentence for people)."""
    identified_by: tuple[str, ...] = ()
    """Evidence that separates two signals of this kind on one machine, beside check, device and link."""
    thresholds: tuple[str, ...] = ()
    """Settings in the section ``detect`` of the policy file."""
    every: str = ""
    """The setting there with the seconds between two looks; empty: it is seen at once, or reported from outside."""
    unless: str = ""
    """Changes of its meaning by its evidence, for the docs."""
    accuses: bool | None = None
    """Whether another machine would change it; None: as its scope has it."""
    repeats: bool = False
    """It may pass by itself: while it lasts, it is reported again, and each time is a signal."""
    flaps: bool = False
    """It counts for a machine that flaps: something went away and came back, or may."""
    at_a_look: AtALook = AtALook.IMMEDIATE

    @property
    def of_a_machine(self) -> bool:
        """Whether it is a signal of a machine, in any epoch."""
        return self.scope in OF_A_MACHINE

    @property
    def accuses_machine(self) -> bool:
        """Whether the machine that it names may be at fault."""
        return self.of_a_machine if self.accuses is None else self.accuses

    @property
    def identifying(self) -> tuple[str, ...]:
        """Evidence that separates two signals of this kind on one machine, in the order of its key."""
        return (*self.identified_by, *(("check", "device", "link") if self.of_a_machine else ()))
