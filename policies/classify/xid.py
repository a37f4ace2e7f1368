"""NVIDIA's Xid codes: the meaning of the driver's number in the kernel log, and the action (``xid.yaml``)."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from holdfast.errors import SettingsError
from holdfast.models.base import Frozen
from holdfast.policies.classify import nvlink

CATALOGUE_FILE = Path(__file__).parents[1] / "xid.yaml"


class XidAction(StrEnum):
    """The catalogue's immediate action, in our words."""

    RESTART_APP = "restart_app"
    RESET_GPU = "reset_gpu"
    RESTART_MACHINE = "restart_machine"
    CHECK_HARDWARE = "check_hardware"
    IGNORE = "ignore"
    CONTACT_SUPPORT = "contact_support"


class XidEntry(Frozen):
    """One code."""

    code: int
    name: str
    lost: bool
    """The GPU cannot be used any more without a reset or repair: evict at once."""
    action: XidAction
    known: bool = True


class XidCatalogue(Frozen):
    """The data file, with its source and date."""

    version: int
    source: str
    date: str
    entries: dict[int, XidEntry]
    nvlink_units: dict[str, nvlink.NvlinkUnit]


@lru_cache(maxsize=8)
def catalogue(path: Path = CATALOGUE_FILE) -> XidCatalogue:
    """Read the data file.

    Raises:
        SettingsError: it is missing or malformed.
    """
    try:
        raw: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        codes = raw.pop("codes")
        return XidCatalogue(
            entries={code: XidEntry(code=code, **entry) for code, entry in codes.items()}, **raw
        )
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValidationError) as error:
        raise SettingsError(
            f"Xid catalogue {path}: {error}. Reinstall holdfast or repair the file."
        ) from None


_RECOVERY = {
    "none": XidAction.IGNORE,
    "drain p2p": XidAction.RESTART_APP,
    "drain and reset": XidAction.RESET_GPU,
    "gpu reset required": XidAction.RESET_GPU,
    "gpu reset": XidAction.RESET_GPU,
    "pf flr": XidAction.RESET_GPU,
    "node reboot required": XidAction.RESTART_MACHINE,
    "os reboot": XidAction.RESTART_MACHINE,
}
"""The recovery action that Xid 154 names (``nvmlDeviceGpuRecoveryAction_t``, and drivers' words for it)."""
SUMMARY = 154
BY_LINE = nvlink.CODES | {SUMMARY, nvlink.OLDER}
"""Codes whose line gives the action."""


def resolved(code: int, line: str = "") -> XidEntry:
    """Return the catalogue's entry, refined by the line: Xid 154 sums up others, NVLink's have sub-codes."""
    entry = lookup(code)
    if code in nvlink.CODES:
        return _of_link(entry, line)
    if code == nvlink.OLDER and nvlink.consequence(line):
        return entry.model_copy(update={"lost": False, "action": XidAction.CONTACT_SUPPORT})
    if code != SUMMARY:
        return entry
    _, _, last = line.rpartition(" to ")
    words = last.partition("(")[2].partition(")")[0].strip().lower()
    action = _RECOVERY.get(words)
    if action is None:
        return entry
    lost = action in (XidAction.RESET_GPU, XidAction.RESTART_MACHINE)
    return entry.model_copy(update={"action": action, "lost": lost, "name": f"GPU recovery: {words}"})


def _of_link(entry: XidEntry, line: str) -> XidEntry:
    name = nvlink.action(line, catalogue().nvlink_units)
    if not name:
        return entry
    action = XidAction(name)
    return entry.model_copy(update={"action": action, "lost": action is XidAction.RESET_GPU})


def lookup(code: int) -> XidEntry:
    """Return the catalogue's entry; an unused code is not lost, and one for the vendor's support."""
    entry = catalogue().entries.get(code)
    if entry is not None:
        return entry
    return XidEntry(
        code=code, name=f"unknown Xid {code}", lost=False, action=XidAction.CONTACT_SUPPORT, known=False
    )
