"""Settings that have a rank's collectives recorded, and the files that NCCL's watchdog writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.agent.ranks.flight_thread import ENV_FOLDER

ENTRIES = 2000
"""Collectives that each rank's recorder keeps; PyTorch's default too (2.13)."""
_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Where the watchdog writes to, followed by the rank's number; the second is its older name."""
_BUFFERS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


def environment(folder: Path | str, given: Mapping[str, str]) -> dict[str, str]:
    """Return a rank's variables beside those that the job sets itself, whose values take precedence."""
    env = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    if not any(name in given for name in _FILES):
        env[_FILES[0]] = f"{folder}/"
    if not any(name in given for name in _BUFFERS):
        env[_BUFFERS[0]] = str(ENTRIES)
    return {ENV_FOLDER: str(folder)} | {name: value for name, value in env.items() if name not in given}


def watchdog_files(folder: Path | str, given: Mapping[str, str]) -> str:
    """Return how the names of the watchdog's files begin: as the job sets it, else in ``folder``."""
    return next((given[name] for name in _FILES if name in given), f"{folder}/")
