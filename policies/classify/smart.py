"""Health of a disk, from the output of ``smartctl -j -a``.

Sources: smartmontools, ``smartctl.8`` (exit status) and ``scsiprint``, ``ataprint`` and ``nvmeprint`` (JSON); NVM
Express base specification, SMART / Health Information (bits of the critical warning).
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from holdfast.models.base import Frozen
from holdfast.policies.classify.dcgm_diag import json_in

NOT_READ = 0b011
"""Bits of the exit status: bad arguments, or the disk was not opened."""
GARBLED = 0b100
"""Bit of the exit status: a command failed or a checksum is wrong, so counters may be anything."""
HOT, WORN = 0x02, 0x04
"""Bits of an NVMe disk's critical warning: temperature; reliability, also set when the rated life is used up."""
ATA_COUNTERS = {187: "reported_uncorrectable", 197: "pending_sectors"}
"""Attributes that count what could not be read. Others (5, 199) grow on healthy disks too, or mean a cable."""


class Disk(Frozen):
    """A disk's report of itself."""

    name: str = ""
    failing: bool = False
    """It predicts its own failure, for more than heat or age."""
    noted: str = ""
    """Its warning of a condition that it goes on with: heat, a rated life that is used up."""
    why: str = ""
    errors: dict[str, int] = Field(default_factory=dict)
    """Data that it could not read or write, since it was made, by counter."""


def read(output: str) -> Disk | None:
    """Return the disk; None where the output does not report its health."""
    report = json_in(output) or {}
    status = _int(_at(report, "smartctl", "exit_status")) or 0
    if status & NOT_READ:
        return None
    passed, errors = _at(report, "smart_status", "passed"), {} if status & GARBLED else _errors(report)
    if not isinstance(passed, bool) and not errors:
        return None
    disk = Disk(name=str(_at(report, "device", "name") or ""), errors=errors)
    if passed is not False:
        return disk
    mild = _mild(report)
    why = mild or _attributes(report) or "its own assessment is that it fails"
    return disk.model_copy(update={"failing": not mild, "noted": mild, "why": why})


def _mild(report: dict[str, Any]) -> str:
    """Return the warning of an NVMe disk that only is hot, or old without an error; else empty."""
    log = _at(report, "nvme_smart_health_information_log")
    bits = _int(_at(log, "critical_warning")) or 0
    if not bits or bits & ~(HOT | WORN):
        return ""
    if bits & WORN:
        used, broken = _int(_at(log, "percentage_used")), _int(_at(log, "media_errors"))
        return (
            f"{used} % of its rated life is used" if used is not None and used >= 100 and broken == 0 else ""
        )
    return "it is too hot or too cold"


def _attributes(report: dict[str, Any]) -> str:
    """Return the attributes of an ATA disk that are below their threshold now."""
    return ", ".join(
        f"{row.get('name')} {row.get('value')} (threshold {row.get('thresh')})"
        for row in _rows(report)
        if row.get("when_failed") == "now"
    )[:200]


def _errors(report: dict[str, Any]) -> dict[str, int]:
    found = {"media_errors": _int(_at(report, "nvme_smart_health_information_log", "media_errors"))}
    for way in ("read", "write"):
        count = _int(_at(report, "scsi_error_counter_log", way, "total_uncorrected_errors"))
        found[f"uncorrected_{way}_errors"] = count
    for row in _rows(report):
        name = ATA_COUNTERS.get(_int(row.get("id")) or 0)
        if name:
            found[name] = _int(_at(row, "raw", "value"))
    return {name: count for name, count in found.items() if count is not None}


def _rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    table = _at(report, "ata_smart_attributes", "table")
    return [row for row in table if isinstance(row, dict)] if isinstance(table, list) else []


def _at(node: Any, *names: str) -> Any:
    for name in names:
        node = node.get(name) if isinstance(node, dict) else None
    return node


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
