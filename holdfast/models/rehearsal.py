"""Results of restore rehearsals: whether a saved state could be restored, reported while the job still runs."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from pydantic import Field

from holdfast.models.base import Frozen
from holdfast.models.checkpoint import Tier
from holdfast.models.names import JobName, MachineOrNone, Rank

MOST_PROBLEMS = 20
"""Problems that a proof carries, at most: one fault of structure may show in every item."""


class Problem(Frozen):
    """One part of a state that could not be restored."""

    path: str
    """Where in the state, as ``optimizer.param_groups.0.lr``; empty: the file as a whole."""
    wrong: str

    def __str__(self) -> str:
        return f"{self.path}: {self.wrong}" if self.path else self.wrong


class Proof(Frozen):
    """The result of loading a shard file, or of reading a checkpoint in S3, outside of training."""

    ok: bool
    problems: tuple[Problem, ...] = ()
    """At most :data:`MOST_PROBLEMS`."""
    untested: tuple[Problem, ...] = ()
    """Items that only the user's script can load, and why; no failure."""
    items: int = Field(0, ge=0)
    """Items that were loaded and compared."""
    nbytes: int = Field(0, ge=0)
    """Of the file, or of all files."""
    seconds: float = Field(0.0, ge=0)

    @classmethod
    def of(cls, problems: Iterable[Problem], untested: Iterable[Problem] = (), **measured: float) -> Proof:
        """Return a proof, ok without problems."""
        found = tuple(problems)
        return cls.model_validate(
            {
                "ok": not found,
                "problems": found[:MOST_PROBLEMS],
                "untested": tuple(untested)[:MOST_PROBLEMS],
                **measured,
            }
        )


class RehearsalOutcome(StrEnum):
    """How a rehearsal ended."""

    PROVEN = "proven"
    FAILED = "failed"
    UNTESTED = "untested"


class Rehearsal(Frozen):
    """One shard, or one checkpoint in S3, that was to be proven."""

    job: JobName
    step: int = 0
    epoch: int = 0
    """The epoch that saved it."""
    rank: Rank | None = None
    """None: the checkpoint of all ranks."""
    machine: MachineOrNone = ""
    """The machine whose copy was tested; for S3, the machine that tested it."""
    tier: Tier
    plan: str = ""
    at: float = 0.0
    """When it ended, Unix seconds of the machine's clock."""
    proof: Proof | None = None
    """None: it was not tested."""
    why_not: str = ""
    """Why it was not tested."""

    @property
    def outcome(self) -> RehearsalOutcome:
        """How it ended."""
        if self.proof is None:
            return RehearsalOutcome.UNTESTED
        return RehearsalOutcome.PROVEN if self.proof.ok else RehearsalOutcome.FAILED

    @property
    def result(self) -> str:
        """In words, without the step."""
        if self.proof is None:
            return f"not tested: {self.why_not}"
        if not self.proof.ok:
            more = len(self.proof.problems) - 1
            return f"NOT RESTORABLE: {self.proof.problems[0]}" + (f" (and {more} more)" if more else "")
        left_out = "; ".join(map(str, self.proof.untested[:3]))
        return f"proven; not tested: {left_out}" if left_out else "proven"


class Rehearsed(Frozen):
    """The part of a heartbeat about the ranks' rehearsals in the present epoch: small, whatever the job's size."""

    step: int = 0
    """The lowest of the steps that were proven, one per rank; 0: not every rank of the machine has one."""
    failed: str = ""
    """The first rank that could not be restored, with the path; empty: none."""
    untested: str = ""
    """Why a rank, or a part of its state, was not tested; empty: all were."""
    at: float = 0.0
    """When the newest of them ended, Unix seconds of the machine's clock."""


def summed_up(ranks: Iterable[int], found: Iterable[Rehearsal]) -> Rehearsed | None:
    """Return a machine's summary of the newest rehearsal of each of its ``ranks``; None before the first.

    Args:
        ranks: all that run on the machine.
        found: at most one of each.
    """
    known = {each.rank: each for each in found}
    if not known:
        return None
    failed = next((each for each in known.values() if each.outcome is RehearsalOutcome.FAILED), None)
    untested = next((each for each in known.values() if each.outcome is RehearsalOutcome.UNTESTED), None)
    proofs = [each.proof for each in known.values() if each.proof is not None]
    left_out = next((proof.untested[0] for proof in proofs if proof.untested), None)
    proven = [each.step for each in known.values() if each.outcome is RehearsalOutcome.PROVEN]
    whole = set(ranks) <= known.keys() and len(proven) == len(known)
    return Rehearsed(
        step=min(proven) if whole else 0,
        failed=f"{_first(failed)} (rank {failed.rank} at step {failed.step})" if failed else "",
        untested=(untested.why_not if untested else str(left_out or ""))[:300],
        at=max(each.at for each in known.values()),
    )


def _first(failed: Rehearsal) -> str:
    assert failed.proof is not None
    return str(failed.proof.problems[0])[:400]
