"""NVIDIA's Xid and SXid lines in the kernel log."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from pathlib import Path

from holdfast.agent.inspection.base import Limits
from holdfast.agent.inspection.follow import Follower
from holdfast.models.alert import Alert, AlertKind, Finding
from holdfast.models.base import Frozen
from holdfast.paths import machine_dir
from holdfast.policies import xid
from holdfast.settings import Settings

# NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
# NVRM: Xid (0000:03:00): 31, Ch 00000010, ...                     NVRM: GPU at PCI:... : no Xid
# nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO
_XID = re.compile(r"\b(?P<kind>S?Xid)\s*\((?:PCI:)?(?P<pci>[0-9A-Fa-f:.]+)\):?\s*(?P<code>\d+)\b(?P<rest>.*)")
_FATAL_SXID = re.compile(r"^\s*,\s*fatal\b", re.IGNORECASE)
_PID = re.compile(r"\bpid='?(\d+)'?")
_NAME = re.compile(r"\bname='?([^,'<>]+)'?")
_REMEMBERED = 64


class XidLine(Frozen):
    """One line of the kernel log that reports an Xid (GPU) or SXid (NVSwitch)."""

    xid: int
    pci: str
    switch: bool
    lost: bool
    pid: int | None
    process: str
    line: str


def parse(line: str) -> XidLine | None:
    """The Xid that ``line`` reports; None when it reports none."""
    match = _XID.search(line)
    if match is None:
        return None
    code, switch, rest = int(match["code"]), match["kind"] == "SXid", match["rest"]
    pid, name = _PID.search(rest), _NAME.search(rest)
    return XidLine(
        xid=code,
        pci=match["pci"].lower(),
        switch=switch,
        # Switch codes are numbers of another catalogue: the driver says itself which are fatal.
        lost=bool(_FATAL_SXID.match(rest)) if switch else xid.lookup(code).lost,
        pid=int(pid[1]) if pid else None,
        process=name[1].strip() if name else "",
        line=line.strip()[:1000],
    )


def kernel_log_path(home: Path, machine: str, settings: Settings) -> Path:
    """The kernel log that the machine's agent follows."""
    return Path(settings.kernel_log) if settings.kernel_log else machine_dir(home, machine) / "kernel.log"


class KernelLogDetector:
    """Follows one kernel log; only lines written after it was made count."""

    name = "kernel_log"
    blocking = False

    def __init__(self, machine: str, path: Path, limits: Limits) -> None:
        self.interval_s = limits.kernel_log_s
        self._machine = machine
        self._recent_s = limits.recent_s
        self._follower = Follower(path)
        self._seen: OrderedDict[str, tuple[float, XidLine]] = OrderedDict()
        self._pending: list[Alert] = []

    def poll(self) -> list[Alert]:
        """One alert per Xid and GPU; a storm of one Xid within one poll is one alert."""
        self._read()
        alerts, self._pending = self._pending, []
        return alerts

    def inspect(self) -> list[Finding]:
        """Lost GPUs among the Xids of the last minutes, the newest lines included."""
        self._read()
        since = time.time() - self._recent_s
        seen = [found for at, found in self._seen.values() if at >= since]
        lost = [found for found in seen if found.lost]
        others = ", ".join(f"{found.xid} at {found.pci}" for found in seen if not found.lost)
        if not lost:
            detail = f"Xids, none of which loses the GPU: {others}" if others else "no Xid"
            return [Finding(check=self.name, machine=self._machine, ok=True, detail=detail)]
        return [
            Finding(check=self.name, machine=self._machine, ok=False, sure=True, detail=found.line)
            for found in lost
        ]

    def _read(self) -> None:
        now = time.time()
        fresh: dict[str, XidLine] = {}
        for line in self._follower.lines():
            if (found := parse(line)) is not None:
                fresh.setdefault(_key(found), found)
        for key, found in fresh.items():
            self._seen[key] = (now, found)
            self._seen.move_to_end(key)
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        self._pending += [self._alert(key, found, now) for key, found in fresh.items()]

    def _alert(self, key: str, found: XidLine, at: float) -> Alert:
        evidence = found.model_dump(exclude_none=True)
        if found.switch:
            # Not an Xid: readers would look its number up in the wrong catalogue.
            evidence |= {"check": "nvswitch_fatal" if found.lost else "nvswitch_error"}
            evidence |= {"value": evidence.pop("xid"), "limit": "none"}
        return Alert(
            kind=AlertKind.HOST_FAULT if found.switch else AlertKind.XID,
            machine=self._machine,
            at=at,
            fingerprint=f"xid:{self._machine}:{key}",
            evidence=evidence,
        )


def _key(found: XidLine) -> str:
    return f"{'s' if found.switch else ''}{found.xid}:{found.pci}"
