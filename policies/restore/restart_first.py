"""Whether a job is restarted before its diagnosis, which then runs beside the training. Pure.

Ranks that kept their process are in the next epoch at once; the diagnosis would be most of the time that they wait. So
where a rank died for the first time, and all that the diagnosis could say without finding a machine is "retry in
place", that is done first. Whatever asks for evidence before a restart is diagnosed first, as ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.models.alert import Alert, Rung
from holdfast.models.base import Frozen
from holdfast.models.classes import IncidentClass
from holdfast.policies.classify.roots import separate
from holdfast.policies.join_names import join_names

CLASSES = frozenset({IncidentClass.JOB_CRASH})
"""Classes of which a restart by itself is no risk. In a hang, with wrong numbers or new code the next epoch would be
the same again, or worse."""


class DeathFacts(Frozen):
    """Facts about a job once a rank has died and the others were stopped."""

    incident_class: IncidentClass
    kept: int = 0
    """Ranks whose process waits for the next epoch."""
    silent: tuple[str, ...] = ()
    """Machines that did not answer when the ranks were stopped."""
    again: int = 0
    """Times that the job failed before without progress since, in whatever way, this incident's restarts included."""
    often: bool = False
    """It fails so often that each restart is preceded by more checks."""
    rung: Rung = Rung.RETRY
    """The ladder's next one where no check names a machine."""
    data: str = ""
    """Why the data is a suspect too."""
    raised: str = ""
    """Exception of the rank; empty: it was ended by a signal, or its last words are not known."""
    cause: str = ""
    """Cause that the end of its log points to."""
    accused: tuple[str, ...] = ()
    """Machines that signals beside its end accuse, surely or not."""


def own_end(alerts: Iterable[Alert]) -> tuple[str, str]:
    """Return what the first rank to die raised, and the cause that the end of its log points to; empty: nothing."""
    root = next(iter(separate(tuple(alerts)).roots), None)
    if root is None:
        return "no rank's own end is known", ""
    return str(root.evidence.get("error_type") or ""), str(root.evidence.get("cause") or "")


def why_diagnosed_first(death: DeathFacts, *, wanted: bool) -> str:
    """Return why the diagnosis comes before the restart; empty: it runs beside it.

    Args:
        death: what is known.
        wanted: the policy file's ``keep_processes.restart_first``.
    """
    asks = {
        f"a {death.incident_class.value} asks for evidence before a restart": death.incident_class
        not in CLASSES,
        "the policy file wants it first (keep_processes.restart_first)": not wanted,
        "no rank kept its process": not death.kept,
        f"{join_names(death.silent)} did not answer": bool(death.silent),
        "it failed before without progress": bool(death.again),
        "it fails often": death.often,
        death.data: bool(death.data),
        f"the ladder's next rung is {death.rung.value}": death.rung is not Rung.RETRY,
        f"the rank's own end is evidence ({death.raised or death.cause})": bool(death.raised or death.cause),
        f"signals accuse {join_names(death.accused)}": bool(death.accused),
    }
    return next((why for why, applies in asks.items() if applies), "")
