"""State of a job's rehearsals: whether its newest checkpoint is known to restore, from its machines' reports. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.models.base import Frozen
from holdfast.models.rehearsal import RehearsalOutcome, Rehearsed


class Restorable(Frozen):
    """The state of a job's rehearsals, for people."""

    outcome: RehearsalOutcome
    step: int = 0
    """The lowest of the steps at which ranks were proven, when all were."""
    told: str
    """``restore proven at step 12``, ``NOT RESTORABLE: PATH: ...``, ``not tested: ...``."""


def restorable(reports: Mapping[str, Rehearsed | None]) -> Restorable:
    """Combine the machines' reports on the job's present epoch, by name; None: no report yet."""
    known = {name: one for name, one in reports.items() if one is not None}
    for one in known.values():
        if one.failed:
            return Restorable(outcome=RehearsalOutcome.FAILED, told=f"NOT RESTORABLE: {one.failed}")
    untested = next((one.untested for one in known.values() if one.untested), "")
    if reports and all(one is not None and one.step for one in reports.values()):
        step = min(one.step for one in known.values())
        more = f"; not tested: {untested}" if untested else ""
        return Restorable(
            outcome=RehearsalOutcome.PROVEN, step=step, told=f"restore proven at step {step}{more}"
        )
    if untested:
        return Restorable(outcome=RehearsalOutcome.UNTESTED, told=f"not tested: {untested}")
    waiting = [name for name, one in reports.items() if one is None or not one.step]
    if not reports:
        return Restorable(outcome=RehearsalOutcome.UNTESTED, told="not tested: no rank runs")
    why = f"no rehearsal of all ranks yet in this epoch ({len(waiting)} of {len(reports)} machines to come)"
    return Restorable(outcome=RehearsalOutcome.UNTESTED, told=f"not tested: {why}")
