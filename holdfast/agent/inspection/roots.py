"""Paths of a machine's kernel interfaces. A machine that is a process tree of a shared host has its own folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.paths import machine_dir
from holdfast.settings import Settings

KMSG = Path("/dev/kmsg")


@dataclass(frozen=True)
class Roots:
    """Paths that detectors read."""

    sys: Path
    proc: Path
    """Empty for a machine of the local driver, unless a test fills it: what happens to a host that several
    machines share accuses none of them."""
    kernel_log: Path
    tools: str | None = None
    """Search path of the machine's tools; None: the agent's own. What the tools of a shared host report accuses no
    machine of it, so that a machine of the local driver has a folder of its own, ``bin``."""
    shares_host: bool = False
    """Whether other machines run on this host, so that its own processes share a control group with theirs."""

    @classmethod
    def of(cls, home: Path, machine: str, settings: Settings) -> Roots:
        """Return the machine's own kernel paths; for the local driver, those in the machine's folder instead."""
        if settings.driver != "local":
            log = Path(settings.kernel_log) if settings.kernel_log else KMSG
            return cls(Path("/sys"), Path("/proc"), log)
        folder = machine_dir(home, machine)
        log = Path(settings.kernel_log) if settings.kernel_log else folder / "kernel.log"
        return cls(folder / "sys", folder / "proc", log, tools=str(folder / "bin"), shares_host=True)
