"""A thread in every rank that writes the rank's flight recording on request, also while the rank hangs.

A Python signal handler runs in the main thread only, which hangs in a collective just then. So the signal is blocked
and waited for by a thread of its own.

PyTorch keeps two recorders, one for NCCL and one for all other backends (torch 2.13: ``_dump_nccl_trace`` and
``_dump_fr_trace``), and only NCCL's knows the members of its groups. So both are asked, and the members are added. What
NCCL's watchdog writes when a collective times out goes to another file, and stays as it is.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

SIGNAL = signal.SIGRTMIN + 11
ENV_FOLDER = "HOLDFAST_FLIGHT_FOLDER"
SUFFIX = ".asked"
"""Suffix of the files written here, after the rank's number. NCCL's watchdog leaves it out."""
_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
_before: dict[str, int] = {}
"""By recorder, the last record of the epochs that this process outlived: groups of the next have the same names."""


def begin_epoch() -> None:
    """Leave out what was recorded until now."""
    if "torch.distributed" in sys.modules:
        for name, found in _dumped().items():
            _before[name] = max((each["record_id"] for each in found.get("entries", ())), default=-1)


def start(rank: int) -> None:
    """Wait for the signal from now on; do nothing without a place to write to. Main thread only.

    Otherwise the signal, whose default ends a process, would have to be kept from ranks that do not handle it.
    """
    # Before any other thread is started: they inherit the mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})
    if os.environ.get(ENV_FOLDER):
        threading.Thread(target=_wait, args=(rank,), name="holdfast-flight", daemon=True).start()


def _wait(rank: int) -> None:
    while True:
        signal.sigwait({SIGNAL})
        try:  # a process that is kept has another folder in each epoch
            write(Path(os.environ[ENV_FOLDER]) / f"{rank}{SUFFIX}")
        except Exception as error:  # the recording is optional, never a reason to fail
            sys.stderr.write(f"holdfast: no flight recording: {error}\n")


def write(target: Path) -> None:
    """Write the recordings, whole or not at all; a rank that has not loaded torch.distributed has none."""
    if "torch.distributed" not in sys.modules:
        return
    recordings = [_of_epoch(name, found) for name, found in _dumped().items()]
    new = target.with_name(f"{target.name}.new")
    new.write_text(json.dumps({"groups": _members(), "recordings": recordings}))
    new.replace(target)


def _dumped() -> dict[str, Any]:
    from torch._C import _distributed_c10d  # noqa: PLC0415

    dumps = {name: getattr(_distributed_c10d, name, None) for name in _DUMPS}
    return {
        name: json.loads(dump(includeCollectives=True, onlyActive=False))
        for name, dump in dumps.items()
        if dump
    }


def _of_epoch(name: str, found: dict[str, Any]) -> dict[str, Any]:
    last = _before.get(name, -1)
    return found | {"entries": [each for each in found.get("entries", ()) if each["record_id"] > last]}


def _members() -> list[dict[str, Any]]:
    """Return every process group that this rank is in, by its name, and its members, in the order of the group."""
    from torch.distributed import distributed_c10d  # noqa: PLC0415

    world = distributed_c10d._world
    names = dict(world.pg_names)
    return [
        {"name": str(names[group]), "ranks": sorted(ranks, key=lambda rank: ranks[rank])}
        for group, ranks in list(world.pg_group_ranks.items())
        if group in names
    ]
