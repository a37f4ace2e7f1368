"""NVLink errors. Those of NVLink 5 (Xid 144 to 150): what to do depends on the unit, the error status and the sub-code.

NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 ...)
The first word in the brackets is the catalogue's IntrInfo, the second its error status.

Those before (Xid 74) have registers of the link, whose bits the catalogue's workflow explains.
NVRM: Xid (PCI:0000:3b:00): 74, ..., NVLink: fatal error detected on link 14(0x100000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import Field

from holdfast.models.base import Frozen

CODES = frozenset(range(144, 151))
_WORDS = re.compile(
    r"\b(?P<unit>[A-Z][A-Z0-9_]{1,40})(?:/[A-Z0-9_]{1,40})?\s+(?:Non-?)?[Ff]atal\b"
    r".{0,80}?\(0x(?P<info>[0-9a-fA-F]{1,8}) 0x(?P<status>[0-9a-fA-F]{1,8})\b"
)
OLDER = 74
_REGISTERS = re.compile(
    r"\blink \d{1,2} ?\(0x(?P<first>[0-9a-fA-F]{1,8})(?P<others>(?:, ?0x[0-9a-fA-F]{1,8}){3,8})\)"
)
_PASSED_OVER = 1 << 0 | 1 << 23 | 1 << 30
_SECONDARY = 1 << 1 | 1 << 20
"""Bits of the first register that the catalogue takes for a consequence of another error."""


class NvlinkUnit(Frozen):
    """The catalogue's entry for one unit's errors."""

    by: str = Field("status", pattern=r"^(status|subcode)$")
    """Meaning of the numbers below: the error status, or bits 20 to 25 of IntrInfo."""
    ignore: frozenset[int] = frozenset()
    reset: frozenset[int] = frozenset()
    follow: frozenset[int] = frozenset()
    """Numbers for which Xid 154 gives the action."""
    reset_when: Mapping[int, int] = Field(default_factory=dict)
    """Mask to value: IntrInfo that asks for a reset where its status alone does not."""


def action(line: str, units: Mapping[str, NvlinkUnit]) -> str:
    """Return ``ignore``, ``reset_gpu``, ``restart_app`` (Xid 154 has more), or empty: not in the catalogue."""
    found = _WORDS.search(line)
    unit = units.get(found["unit"]) if found else None
    if found is None or unit is None:
        return ""
    info, status = int(found["info"], 16), int(found["status"], 16)
    subcode = info >> 20 & 0x3F
    if unit.by == "status" and subcode:
        return ""
    number = subcode if unit.by == "subcode" else status
    if number in unit.reset or _asks_for_a_reset(unit, info, number):
        return "reset_gpu"
    if number in unit.follow:
        return "restart_app"
    return "ignore" if number in unit.ignore else ""


def _asks_for_a_reset(unit: NvlinkUnit, info: int, number: int) -> bool:
    return number in unit.ignore and any(info & mask == value for mask, value in unit.reset_when.items())


def consequence(line: str) -> bool:
    """Return whether the registers of an Xid 74 report nothing but what another error, of a peer mostly, led to."""
    found = _REGISTERS.search(line)
    if found is None:
        return False
    first = int(found["first"], 16)
    only = bool(first & _SECONDARY) and not first & ~(_SECONDARY | _PASSED_OVER)
    return only and re.search("0x0*[1-9a-fA-F]", found["others"]) is None
