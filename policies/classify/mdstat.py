"""State of Linux software RAID, from the text of ``/proc/mdstat`` and of ``mdadm --detail``.

Sources: Documentation/admin-guide/md.rst and ``md_seq_show`` of the kernel; Detail.c of mdadm.
"""

from __future__ import annotations

import re
from enum import StrEnum

from holdfast.models.base import Frozen

_HEAD = re.compile(r"^\s*(md\w{1,32}) : (active|inactive|broken)\b")
_LEVEL = re.compile(r"\b(raid\d{1,2}|linear|multipath)\b")
_MEMBERS = re.compile(r"\[(\d{1,4})/(\d{1,4})\]\s+\[([U_]{1,512})\]")
_COPIES = re.compile(r"\b(\d{1,2}) (near|far|offset)-copies\b")
_FAILED = re.compile(r"(\S{1,64})\[\d{1,4}\](?:\([A-Z]\)){0,8}\(F\)")
_RESHAPE = re.compile(r"\breshape\s*=")
_DETAIL = re.compile(r"^\s*/dev/(?:md/)?(\S{1,64}):\s*$", re.MULTILINE)
_FIELD = re.compile(r"^\s*(State|Raid Level|Raid Devices|Active Devices) : (.{1,80})$", re.MULTILINE)
_SURVIVED = {"raid4": 1, "raid5": 1, "raid6": 2}
"""Members that may be missing."""


class State(StrEnum):
    """State of an array: the work that it can still do."""

    WHOLE = "whole"
    DEGRADED = "degraded"
    """It works on fewer members than it should."""
    BROKEN = "broken"
    """More members are missing than its level survives: it can not be read or written in full."""


class Array(Frozen):
    """One array that reports its members."""

    name: str
    state: State
    detail: str


def arrays(mdstat: str) -> list[Array]:
    """Return the arrays in ``/proc/mdstat``. One without drawn members (inactive, RAID 0, cut off) is not tested."""
    blocks: list[list[str]] = []
    for line in mdstat.splitlines():
        if _HEAD.match(line):
            blocks.append([line])
        elif not line.strip() or line.lstrip().startswith("unused devices"):
            blocks.append([])
        elif blocks and blocks[-1]:
            blocks[-1].append(line)
    return [found for block in blocks if block and (found := _drawn("\n".join(block)))]


def detail(mdadm: str) -> Array | None:
    """Return the array in the output of ``mdadm --detail``; None where its state is not in it."""
    named = _DETAIL.search(mdadm)
    fields = {name: value.strip() for name, value in _FIELD.findall(mdadm)}
    shown = fields.get("State")
    if named is None or shown is None:
        return None
    missing = _number(fields.get("Raid Devices")) - _number(fields.get("Active Devices"))
    words = {word.strip() for word in shown.split(",")}
    # Versions before 3.2 call an array degraded however many members it has lost.
    if "FAILED" in words or missing > _SURVIVED.get(fields.get("Raid Level", ""), missing):
        state = State.BROKEN
    else:
        state = State.DEGRADED if "degraded" in words else State.WHOLE
    return Array(name=named[1], state=state, detail=shown)


def _drawn(block: str) -> Array | None:
    head, members, level = _HEAD.match(block), _MEMBERS.search(block), _LEVEL.search(block)
    if head is None or head[2] != "active" or members is None or level is None:
        return None
    drawn = members[3]
    if len(drawn) != int(members[1]) or drawn.count("U") != int(members[2]):
        return None
    words = f"[{drawn}]"
    if failed := _FAILED.findall(block.partition("\n")[0]):
        words += f", failed: {', '.join(failed)}"
    return Array(name=head[1], state=_state(level[1], drawn, block), detail=f"{level[1]} {words}"[:200])


def _state(level: str, drawn: str, block: str) -> State:
    missing = drawn.count("_")
    if not missing:
        return State.WHOLE
    # Members that are being added are not in sync yet.
    lost = not _RESHAPE.search(block) and _lost(level, drawn, missing, _COPIES.search(block))
    return State.BROKEN if lost else State.DEGRADED


def _lost(level: str, drawn: str, missing: int, copies: re.Match[str] | None) -> bool:
    if level == "raid1":
        return missing == len(drawn)
    if level != "raid10" or copies is None:
        return missing > _SURVIVED.get(level, missing)
    several = int(copies[1])
    if copies[2] != "near" or several < 1 or len(drawn) % several:
        # Which members hold the same data depends on the layout: mdadm knows.
        return missing == len(drawn)
    return any(drawn[at : at + several] == "_" * several for at in range(0, len(drawn), several))


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
