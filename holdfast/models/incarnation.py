"""Incarnations: one life of a machine's agent, and of what the engine runs for it (pod, allocation, process tree).

The part behind ``@`` is the *unit*: what the driver would evict. It stays when only the agent restarts, and changes
when the machine does. An agent that is given none reports none, and is taken for the same machine as before.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping

ENV_UNIT = "HOLDFAST_UNIT"
"""Set by drivers for the agent."""
_ENV_SLURM = "SLURM_JOB_ID"


def fresh(environment: Mapping[str, str] = os.environ) -> str:
    """Return a new incarnation of the machine that this process is the agent of."""
    unit = environment.get(ENV_UNIT) or environment.get(_ENV_SLURM, "")
    life = uuid.uuid4().hex[:12]
    return f"{life}@{unit}" if unit else life


def unit_of(incarnation: str) -> str:
    """Return the unit; empty: not known."""
    return incarnation.partition("@")[2]


def why_another(machine: str, meant: str, unit: str) -> str:
    """Return why ``unit``, now named ``machine``, is not that of the incarnation ``meant``; else empty."""
    if unit and unit_of(meant) and unit_of(meant) != unit:
        return (
            f"machine {machine} was restarted: {unit_of(meant)} is gone, and {unit} has its name. "
            "It is left alone."
        )
    return ""


def same_unit(one: str, other: str) -> bool:
    """Return whether both are lives of the same unit, as far as is known."""
    return not unit_of(one) or not unit_of(other) or unit_of(one) == unit_of(other)
