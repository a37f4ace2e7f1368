"""Evidence against the code, and against arithmetic or state: a mere repetition neither rolls back nor replays."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.models.alert import IncidentClass
from holdfast.models.base import Frozen
from holdfast.policies.classify.signature import Signature

_OF_ARITHMETIC = frozenset({IncidentClass.NAN_LOSS, IncidentClass.SILENT_CORRUPTION})
_DAY_S = 86_400.0
MUST_CHANGE = "the script must change: the same would be refused again"


class FailureFacts(Frozen):
    """Known facts of one failure beside its class."""

    incident_class: IncidentClass
    signature: Signature = Signature()
    version: str = ""
    """The code version that ran."""
    version_age_s: float | None = None
    """Seconds before the fault at which it ran for the first time; None: not known."""
    ranks: tuple[int, ...] = ()
    """Ranks that raised the same exception in the same frame of the job's code, now or before."""
    changed: str = ""
    """Report that the traceback ends in a line that the running version changed; empty: it does not, or unchecked."""
    again: int = 0
    """Number of times that the same failure came before without progress since."""
    fell_since: bool = False
    """The job was started again for it, and failed again at once."""
    state_suspected: bool = False
    """The restored state led to the same failure before."""
    last: bool = False
    """Most other ranks had ended with status 0: this one fell over what comes after the training."""
    refused: bool = False
    """The script refused its command line (:mod:`holdfast.policies.classify.usage_errors`)."""
    refusal: str = ""
    """Why the Session refused the script, as it would again; empty: it did not."""


def for_code(facts: FailureFacts, suspect_s: float) -> str:
    """Return the evidence against the code; empty: none.

    Args:
        facts: of the failure.
        suspect_s: a version counts as new for so long.
    """
    if len(facts.ranks) > 1:
        return f"ranks {_listed(facts.ranks)} raise {facts.signature.what} in the same frame"
    if facts.changed:
        return facts.changed
    age_s = facts.version_age_s
    if age_s is None or age_s <= suspect_s:
        return (
            f"version {facts.version} is new" if age_s is not None else "how long the code ran is not known"
        )
    return ""


def code_cleared(facts: FailureFacts, suspect_s: float) -> str:
    """Return why the code is not rolled back; empty: there is evidence against it."""
    if _killed_once(facts):
        return f"{facts.signature.what} came from outside, and once: no evidence against the code"
    if facts.last and _once(facts):
        return "most other ranks had ended with status 0, and it came once: the same code ends the job"
    if for_code(facts, suspect_s):
        return ""
    days = (facts.version_age_s or 0.0) / _DAY_S
    return f"version {facts.version} ran for {days:.1f} days, and there is no other evidence against it"


def _killed_once(facts: FailureFacts) -> bool:
    """Return whether a kill from outside, for which no cause was found beside it, is all that happened."""
    return facts.signature.from_outside and _once(facts)


def _once(facts: FailureFacts) -> bool:
    """Return whether it is a crash that came once, of one rank, and not in lines that the running version changed."""
    crashed = facts.incident_class is IncidentClass.JOB_CRASH
    return crashed and not (facts.again or facts.fell_since or facts.changed or len(facts.ranks) > 1)


def arithmetic_cleared(facts: FailureFacts) -> str:
    """Return why no replay is run; empty: there is evidence of wrong arithmetic or a bad state."""
    if facts.incident_class in _OF_ARITHMETIC or facts.state_suspected:
        return ""
    if facts.refused:
        return "the script refused its command line: no replay can show it"
    if facts.signature.from_outside:
        return f"{facts.signature.what} has a cause outside the job: a replay cannot reproduce it"
    return "" if facts.again else "it happened once: no evidence of wrong arithmetic or a bad state"


def no_retry(facts: FailureFacts, changed_s: float, can_rollback: bool, may_skip: bool = False) -> str:
    """Return why a retry is pointless; empty: it is not.

    The first version's code raised soon after submission, the same command line was refused before, or the Session
    refused the script. Where the job ``may_skip`` data, one that trained is retried: whether the data of its next step
    is at fault shows when it falls there again.
    """
    age_s = facts.version_age_s
    if facts.refusal:
        return MUST_CHANGE
    if facts.refused and facts.again:
        return "the script refused its command line before, and would again"
    if can_rollback or facts.incident_class is not IncidentClass.USER_CODE_ERROR:
        return ""
    if age_s is None or age_s > changed_s or (may_skip and facts.signature.position.step):
        return ""
    return f"version {facts.version} raised in its own code after {age_s:.0f} s, and there is none to roll back to"


def may_go_back(facts: FailureFacts, changed_s_ago: float | None, suspect_s: float) -> bool:
    """Return whether an earlier code version may take the place of this one.

    Always, except where the Session refused the script: then only if a new version came while the job ran. What was
    submitted is not answered with the code of an earlier submission.
    """
    return not facts.refusal or (changed_s_ago is not None and changed_s_ago <= suspect_s)


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown} and {len(ranks) - 8} more" if len(ranks) > 8 else shown
