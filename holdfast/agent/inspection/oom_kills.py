"""Out-of-memory kills that the kernel counts, for where its log cannot be read: of the host and of the control group.

The group is the one that the agent runs in (a container's, a step's of Slurm, a unit's of systemd), of either version:
what its processes start is killed by its limit, too.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.own_groups import own_groups
from holdfast.models.alert import AlertKind

_HOST, _GROUP = "host", "control group"


class OomKills:
    """Fires when a counter grows; it reports how many processes were killed, not which."""

    name = "oom_kills"

    def __init__(self, proc: Path, sys: Path) -> None:
        self._host = proc / "vmstat"
        cgroups = sys / "fs/cgroup"
        # A container may see its group as the root.
        groups = (*own_groups(proc, cgroups, "memory"), cgroups, cgroups / "memory")
        self._of_group = [
            folder / name for folder in groups for name in ("memory.events", "memory.oom_control")
        ]
        self._seen: dict[str, int] = {}
        self._counted_ahead = 0
        """Kills in the group that the host's count had not yet when it was read."""
        self.look()

    def look(self) -> list[Sign]:
        """Return bad signs only."""
        in_all = self._grown(_HOST, _count(self._host))
        counts = (_count(path) for path in self._of_group)
        in_group = self._grown(_GROUP, next((count for count in counts if count is not None), 0))
        # The host's kernel counts those of groups as well, if only at the next look.
        of_host = in_all - in_group - self._counted_ahead
        self._counted_ahead = max(0, -of_host) if _HOST in self._seen else 0
        found = {_GROUP: in_group, _HOST: of_host}
        return [_sign(device, kills) for device, kills in found.items() if kills > 0]

    def _grown(self, device: str, count: int | None) -> int:
        if count is None:
            return 0
        before = self._seen.get(device, count)
        self._seen[device] = count
        return count - before


def _sign(device: str, kills: int) -> Sign:
    return Sign(
        kind=AlertKind.OOM_KILL,
        ok=False,
        detail=f"{kills} processes of the {device} were killed for lack of memory",
        device=device,
        value=kills,
        limit=0,
        evidence={"cgroup": device == _GROUP},
    )


def _count(path: Path) -> int | None:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return None
