"""A machine that is a folder: ``sys``, ``proc``, and tools in ``bin`` that print what a test gives them."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.agent.inspection.base import Detector
from holdfast.agent.inspection.detectors import detectors
from holdfast.agent.inspection.roots import Roots
from holdfast.paths import machine_dir
from holdfast.settings import Settings
from tests.agent.inspection.kit import LIMITS


class Machine:
    """All arrays and disks that are named in an output exist and are mounted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sys, self.proc, self.bin = folder / "sys", folder / "proc", folder / "bin"
        for each in (self.sys / "block", self.proc, self.bin):
            each.mkdir(parents=True, exist_ok=True)

    def prints(self, tool: str, text: str, status: int = 0) -> None:
        """Let the tool print this from now on; ``mdstat`` is a file of the kernel."""
        if tool == "mdstat":
            (self.proc / "mdstat").write_text(text)
            self.mount(*sorted(set(re.findall(r"^\s*(md\w+) :", text, re.MULTILINE))))
            return
        (self.folder / f"{tool}.answer").write_text(text)
        program = self.bin / tool
        program.write_text(
            f'#!/bin/sh\necho "$@" >> {self.folder}/{tool}.calls\ncat {self.folder}/{tool}.answer\nexit {status}\n'
        )
        program.chmod(0o755)
        if tool == "smartctl" and not list((self.sys / "block").iterdir()):
            self.mount(*disk_of(text))

    def mount(self, *names: str) -> None:
        """Make block devices that are in use."""
        for name in names:
            (self.sys / "block" / name).mkdir(exist_ok=True)
        lines = [f"/dev/{each.name} /mnt/{each.name} ext4 rw 0 0" for each in (self.sys / "block").iterdir()]
        (self.proc / "mounts").write_text("".join(f"{line}\n" for line in lines))

    def calls(self, tool: str) -> list[str]:
        """The arguments of each call."""
        path = self.folder / f"{tool}.calls"
        return path.read_text().splitlines() if path.exists() else []


def disk_of(text: str) -> list[str]:
    """The disk that an output is about: its name, or ``sda`` where it has none."""
    found = re.search(r'"name": ?"/dev/((?:sd|nvme)\w+)"', text)
    return [found[1] if found else "sda"]


def of_local_driver(home: Path) -> Machine:
    """A machine of the local driver: its folder is what its detectors read."""
    return Machine(machine_dir(home, "m0"))


def detector_of(machine: Machine, name: str) -> Detector:
    """The detector as the agent of a machine of the local driver makes it."""
    home, settings = machine.folder.parents[1], Settings()
    assert machine.folder == machine_dir(home, "m0")
    made, _ = detectors("m0", home, settings, LIMITS, Roots.of(home, "m0", settings))
    return next(each for each in made if each.name == name)
