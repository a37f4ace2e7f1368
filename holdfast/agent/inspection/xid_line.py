"""NVIDIA's Xid (GPU) and SXid (NVSwitch) lines in the kernel log, in the forms that drivers print."""

from __future__ import annotations

import re

from holdfast.models.base import Frozen
from holdfast.policies.classify import xid
from holdfast.policies.classify.patterns import printable

# NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
# NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=1, name=x, ...     NVRM: Xid (0000:03:00): 31, Ch 00000010, ...
# NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)
# nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO
_XID = re.compile(
    r"\b(?P<kind>S?Xid)\s*\((?:PCI:)?(?P<pci>[0-9A-Fa-f:.]+)(?:\s+GPU-I:(?P<instance>\d+))?[^)]{0,40}\)"
    r":?\s*(?P<code>\d{1,6})\b(?P<rest>.*)"
)
_FATAL_SXID = re.compile(r"^\s*,\s*fatal\b", re.IGNORECASE)
_PID = re.compile(r"\bpid='?(\d{1,10})\b")
_NAME = re.compile(r"\bname='?([^,'<>]{1,128})'?")
_LINK = re.compile(r"\bLink (\d{1,4})\b", re.IGNORECASE)


class XidLine(Frozen):
    """One line of the kernel log that reports an Xid or SXid."""

    xid: int
    pci: str
    switch: bool
    lost: bool
    action: str
    name: str
    pid: int | None
    process: str
    link: int | None
    instance: int | None
    line: str


def parse(line: str) -> XidLine | None:
    """Return the Xid that ``line`` reports; None when it reports none."""
    match = _XID.search(line)
    if match is None:
        return None
    code, switch, rest = int(match["code"]), match["kind"] == "SXid", match["rest"]
    pid, name, link = _PID.search(rest), _NAME.search(rest), _LINK.search(rest)
    entry = xid.resolved(code, rest)
    fatal = bool(_FATAL_SXID.match(rest))
    return XidLine(
        xid=code,
        pci=_address(match["pci"]),
        switch=switch,
        # Switch codes are numbers of another catalogue: the driver reports itself which are fatal.
        lost=fatal if switch else entry.lost,
        action=("reset_gpu" if fatal else "ignore") if switch else entry.action.value,
        name="" if switch else entry.name,
        pid=int(pid[1]) if pid else None,
        process=printable(name[1]) if name else "",
        link=int(link[1]) if link else None,
        instance=int(match["instance"]) if match["instance"] else None,
        line=printable(line),
    )


def _address(text: str) -> str:
    """Return ``0000:3B:00.0`` as ``0000:3b:00``."""
    address = text.lower().rstrip(":")
    head, _, tail = address.rpartition(".")
    return head if head and tail.isdigit() else address
