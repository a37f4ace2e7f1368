"""The environment of Slurm's commands, which the machines' jobs get from sbatch."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# A playbook's own process, or the Slurm job that we may run in, must not shine through into the machines. What a user
# has set for squeue and sinfo would narrow what we see of our jobs and nodes: those left out would count as ended.
_NOT_INHERITED = ("PREFECT_", "SLURM_", "PMI_", "PMIX_", "SQUEUE_", "SINFO_")
# How Slurm's commands find their cluster, and who they are to it.
_INHERITED = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")


def environment(
    home: Path, python: str, agent: Sequence[str], inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return what is to be inherited, and what the batch script needs.

    Args:
        home: the site's folder.
        python: the interpreter of the machines; empty: this one.
        agent: the command that starts a machine's agent; empty: the installed one.
        inherited: this process's environment.
    """
    python = python or sys.executable
    return {
        key: value
        for key, value in inherited.items()
        if key in _INHERITED or not key.startswith(_NOT_INHERITED)
    } | {
        "HOLDFAST_HOME": str(home),
        "HOLDFAST_PYTHON": python,
        "HOLDFAST_AGENT": shlex.join(agent or (python, "-P", "-m", "holdfast.agent")),
    }
