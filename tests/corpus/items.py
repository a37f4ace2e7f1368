"""Real logs and outputs, each with its label: the right class, and the machines that it must not accuse."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, model_validator

from holdfast.models.alert import AlertKind, IncidentClass
from holdfast.models.base import Frozen

FOLDER = Path(__file__).parent


class Kind(StrEnum):
    """Which way an item goes in production."""

    EXIT = "exit"
    """The end of a rank's log, or its last words."""
    KERNEL = "kernel"
    """Lines of the kernel log."""
    DCGM_HEALTH = "dcgm_health"
    """Output of ``dcgmi health -c -j``."""
    DCGM_DIAG = "dcgm_diag"
    """Output of ``dcgmi diag -r 1 -j``."""
    MDSTAT = "mdstat"
    """``/proc/mdstat``."""
    MDADM = "mdadm"
    """Output of ``mdadm --detail`` for one array."""
    SMARTCTL = "smartctl"
    """Output of ``smartctl -j -a`` for one disk."""
    IBSTAT = "ibstat"
    """Output of ``ibstat``."""
    ETHTOOL = "ethtool"
    """Output of ``ethtool -S eth0``."""
    NVIDIA_SMI = "nvidia_smi"
    """Output of ``nvidia-smi -q``, or of ``nvidia-smi`` in its place."""


TOOLS = frozenset({Kind.MDSTAT, Kind.MDADM, Kind.SMARTCTL, Kind.IBSTAT, Kind.ETHTOOL, Kind.NVIDIA_SMI})
"""Kinds whose alerts are labelled one by one."""


NOTHING = "nothing"
ECHO = "echo"


class Item(Frozen):
    """One piece of material."""

    id: str
    kind: Kind
    source: str
    text: str
    held_out: bool = False
    expect: str
    """Of an exit: the class, or ``echo``. Of the rest: what it means by itself, ``nothing`` or a class."""
    beside: str = ""
    """Kernel log: the class of a rank's exit on this machine that names no cause; empty: the exit is a crash."""
    before: str = ""
    """Of a tool: what it printed a minute earlier, where the change is what counts."""
    alerts: tuple[str, ...] = ()
    """Of a tool: every alert, noted ones too, as ``kind device``."""
    tested: bool = True
    """Of a tool: False where it reports on no device, which is neither good nor bad."""
    counts: bool | None = None
    """Of an exit: whether it counts against its machine, where it comes again and again; None: not labelled."""
    exit_code: int = 1
    code: str = ""
    """Folder of the job's code, where the log names files in it."""
    error: Mapping[str, Any] = Field(default_factory=dict)
    """Last words of the rank, where it sent any: error_type, message, user_frame, module."""

    @model_validator(mode="after")
    def _label_is_known(self) -> Item:
        known = {NOTHING, ECHO, *IncidentClass.all_names()}
        for label in (self.expect, self.beside or NOTHING):
            if label not in known:
                raise ValueError(f"item {self.id}: label {label!r} is not one of {', '.join(sorted(known))}")
        if self.kind not in TOOLS and (self.before or self.alerts or not self.tested):
            raise ValueError(
                f"item {self.id}: before, alerts and tested are labels of tools, not of {self.kind}"
            )
        for alert in self.alerts:
            AlertKind(alert.partition(" ")[0])
        return self


@cache
def load(folder: Path = FOLDER) -> tuple[Item, ...]:
    """All items. A file gives what its items have in common under ``common``."""
    found: list[Item] = []
    for path in sorted(folder.glob("*.yaml")):
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        found += [Item.model_validate({**raw.get("common", {}), **each}) for each in raw["items"]]
    return tuple(found)


def real(name: str) -> str:
    """Return the text of one item, for tests that need a real output."""
    return next(item.text for item in load() if item.id == name)
