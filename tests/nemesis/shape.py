"""Shapes of simulated jobs, and the size of the site that they run on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.models.job import JobSpec
from tests.nemesis import replicas

JOB = "gpt"
MACHINES, STANDBYS, RANKS = 3, 2, 2


@dataclass(frozen=True)
class Shape:
    """The kind of job that is played."""

    roles: bool = False
    """It has some beside its ranks."""
    elastic: bool = False
    """It trains on two to four machines."""
    kept: bool = False
    """Its ranks keep their processes where they may."""

    def spec(self) -> JobSpec:
        """Return its specification."""
        fields: dict[str, Any] = {"name": JOB, "script": "train.py", "ranks_per_machine": RANKS}
        fields |= {"machines": {"min": 2, "want": MACHINES, "max": 4} if self.elastic else MACHINES}
        fields |= {"roles": replicas.ROLES} if self.roles else {}
        return JobSpec.model_validate(fields)


PLAIN = Shape()
