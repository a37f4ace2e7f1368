"""Machines that restarted since they were accused: which of them go all the same, and the summary of what was done."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.operations import flaps
from holdfast.policies.join_names import join_names
from holdfast.tasks.case import Case


def flapping(case: Case) -> dict[str, str]:
    """Return those that came and went too often, and why."""
    if not case.returned:
        return {}
    return flaps.find(case.ctx.ledger, case.returned, case.ctx.clock.now(), case.ctx.policy)


def said(case: Case, swapped: Mapping[str, str]) -> str:
    """Describe what became of the accused machines."""
    moves = ", ".join(f"{new} for {old}" for old, new in swapped.items())
    stay = [name for name in case.returned if name not in swapped]
    told = [f"swapped in {moves}"] if moves else []
    if stay:
        told.append(f"{join_names(stay)} restarted since and stays: it was accused in its former life")
    told += [
        f"goes on with {each.result.get('to')} machines of {each.result.get('from')}"
        for each in case.done("shrink")
    ]
    return "; ".join(told) or "no machine was replaced"
