"""Out-of-memory kills that the kernel counts, for where its log cannot be read: of the host and of the container."""

from __future__ import annotations

from pathlib import Path

from holdfast.agent.inspection.base import Sign
from holdfast.models.alert import AlertKind


class OomKills:
    """Fires when a counter grows; it reports how many processes were killed, not which."""

    name = "oom_kills"

    def __init__(self, proc: Path, sys: Path) -> None:
        self._counters = {
            "host": (proc / "vmstat", False),
            "container": (sys / "fs/cgroup/memory.events", True),
        }
        self._seen: dict[str, int] = {}
        self.look()

    def look(self) -> list[Sign]:
        """Return bad signs only."""
        return [
            self._sign(device, count - before, cgroup)
            for device, (path, cgroup) in self._counters.items()
            if (count := _count(path, born_at_0=cgroup)) is not None
            and (before := self._exchange(device, count)) is not None
            and count > before
        ]

    def _exchange(self, device: str, count: int) -> int | None:
        before = self._seen.get(device)
        self._seen[device] = count
        return before

    def _sign(self, device: str, kills: int, cgroup: bool) -> Sign:
        return Sign(
            kind=AlertKind.OOM_KILL,
            ok=False,
            detail=f"{kills} processes of the {device} were killed for lack of memory",
            device=device,
            value=kills,
            limit=0,
            evidence={"cgroup": cgroup},
        )


def _count(path: Path, born_at_0: bool) -> int | None:
    """Return the count; ``born_at_0``: a counter that is not there yet begins at 0, as that of a control group does."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return 0 if born_at_0 else None
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return None
