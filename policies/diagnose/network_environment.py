"""Variables of a job's environment that choose its way over the network: checks for that job take the same way."""

from __future__ import annotations

from collections.abc import Mapping

_OF_LIBRARIES = ("NCCL_", "RCCL_", "GLOO_", "UCX_", "FI_")
"""NCCL and its plugins (UCX, libfabric), and gloo."""
_NOT = frozenset({"NCCL_COMM_ID"})
"""Where the ranks of the job meet: a check has a place of its own."""
_OUTPUT = ("DEBUG", "DUMP", "LOG")
"""Parts of names of variables that have something written: a check would write over the job's files."""


def of_job(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``env`` that choose interfaces, adapters and transports."""
    return {
        name: value
        for name, value in sorted(env.items())
        if name.startswith(_OF_LIBRARIES)
        and name not in _NOT
        and not any(part in _OUTPUT for part in name.split("_"))
    }
