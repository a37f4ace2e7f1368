"""Linux software RAID: arrays that lost more members than they survive, and those that run on fewer."""

from __future__ import annotations

from pathlib import Path

from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.block import BlockDevices
from holdfast.agent.inspection.tool import Tool
from holdfast.models.alert import AlertKind
from holdfast.policies.classify.mdstat import Array, State, arrays, detail

_AT_MOST = 1 << 20


class Raid:
    """A check: what the kernel logged before the agent began is seen here.

    ``/proc/mdstat`` is read; where members are missing, ``mdadm --detail`` is asked as well, if it is installed: it
    knows layouts that the file does not decide.
    """

    name = "raid"

    def __init__(self, sys: Path, proc: Path, mdadm: Tool) -> None:
        self._sys = sys
        self._proc = proc
        self._mdadm = mdadm

    def look(self) -> list[Sign]:
        """Return one sign per array that reports its members."""
        found = arrays(self._mdstat())
        if not found:
            return []
        blocks = BlockDevices(self._sys, self._proc)
        return [sign(self._asked(array), in_use=blocks.in_use(array.name)) for array in found]

    def _mdstat(self) -> str:
        try:
            with (self._proc / "mdstat").open(encoding="utf-8", errors="replace") as file:
                return file.read(_AT_MOST)
        except OSError:
            return ""

    def _asked(self, array: Array) -> Array:
        if array.state is not State.DEGRADED or not self._mdadm.installed:
            return array
        reading = detail(self._mdadm.ask("--detail", f"/dev/{array.name}"))
        if reading is None or reading.state is not State.BROKEN:
            return array
        return array.model_copy(
            update={"state": reading.state, "detail": f"{array.detail}; {reading.detail}"}
        )


def sign(array: Array, *, in_use: bool) -> Sign:
    """Return the sign. A broken array accuses the machine where it is in use: a forgotten one harms no job."""
    broken = array.state is State.BROKEN and in_use
    words = f"{array.name} is {array.state.value}: {array.detail}"
    noted = {"check": f"md_{array.state.value}", "harmless": True}
    return Sign(
        kind=AlertKind.DISK_FAULT if broken else AlertKind.HOST_FAULT,
        ok=array.state is State.WHOLE,
        detail=words if in_use or array.state is not State.BROKEN else f"{words}; it is not in use",
        device=array.name,
        evidence={} if broken else noted,
        sure=broken,
    )
