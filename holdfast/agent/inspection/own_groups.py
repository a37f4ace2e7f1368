"""Folders of the control group that this process is in, for each way in which a host mounts them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def own_groups(proc: Path, cgroups: Path, controller: str) -> Iterator[Path]:
    """Yield where the group that has ``controller`` (version 1), or the one of version 2, may be; none need exist.

    Args:
        proc: where the process's ``self/cgroup`` is; one that cannot be read names none.
        cgroups: the hierarchies are mounted at or below it.
        controller: ``cpu`` or ``memory``.
    """
    try:
        lines = (proc / "self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            hierarchies = dict.fromkeys((cgroups / controllers, cgroups / controller))
        elif not controllers:
            hierarchies = {cgroups: None}
        else:
            continue
        yield from (hierarchy / path.lstrip("/") for hierarchy in hierarchies)
