"""Nodes that Slurm restarts: a restart counts when another boot was seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.drivers.slurm import SlurmDriver
from holdfast.drivers.slurm.commands import CommandAnswer
from holdfast.drivers.slurm.nodes import SlurmNodes
from holdfast.errors import (
    HoldfastError,
    RefusedError,
    UnavailableError,
)
from holdfast.models.machine import Scope
from holdfast.settings import Settings
from tests.drivers.scripted_slurm import FINE, Queue, Scripted


class Rebooting(Queue):
    """A cluster whose node boots once it was asked to, and is away for one look."""

    def __init__(self, *, boots: bool = True) -> None:
        super().__init__()
        self.boots, self.asked, self.looks = boots, False, 0

    def scontrol(self, command: Sequence[str]) -> CommandAnswer:
        """As 22.05 shows a node: with when it booted, and as rebooting while it does."""
        if command[1] == "reboot":
            self.asked = True
            return FINE
        if command[1] == "--oneliner":
            self.looks += self.asked
            away = self.asked and self.looks == 1
            # Reckoned from the uptime each time: a second off from itself.
            before = f"2026-11-01T08:00:0{self.looks % 3}"
            boot = "2026-11-24T12:00:00" if self.asked and self.boots and not away else before
            state = "DOWN+REBOOT_ISSUED" if away else "IDLE+DRAIN"
            return CommandAnswer(status=0, out=f"NodeName=node1 State={state} BootTime={boot} Port=6818\n")
        return FINE


def rebooting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, boots: bool
) -> tuple[SlurmDriver, Scripted]:
    monkeypatch.setattr("holdfast.drivers.slurm.driver.REBOOT_POLL_S", 0.01)
    queue = Rebooting(boots=boots)
    run = Scripted(sbatch=queue.sbatch, squeue=queue.squeue, sinfo=queue.sinfo, scontrol=queue.scontrol)
    driver = SlurmDriver(Settings(home=tmp_path), run=run)
    assert driver.provision(1) == ["node1"]
    return driver, run


def test_a_restart_counts_when_another_boot_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of a machine that is out of service, and it stays down; the reason carries our mark."""
    driver, run = rebooting(tmp_path, monkeypatch, boots=True)
    with pytest.raises(RefusedError, match="in service"):
        driver.reboot("node1", "x", "", 60)
    monkeypatch.setattr(driver, "_end", lambda *_: None)
    driver.evict("node1", Scope.CLUSTER, "broken")
    with pytest.raises(HoldfastError, match="was restarted"):
        driver.reboot("node1", "x", "a@7", 60)
    assert "booted at 2026-11-24T12:00:00, before at 2026-11-01" in driver.reboot("node1", "Xid 79", "", 60)
    (asked,) = [command for command in run.asked if command[:2] == ["scontrol", "reboot"]]
    assert asked[2:] == ["ASAP", "nextstate=DOWN", "reason=holdfast: Xid 79", "node1"]


@pytest.mark.parametrize(
    ("now", "before", "another"),
    [
        ("", "2026-11-01T08:00:00", False),
        ("", "", False),
        ("2026-11-01T08:00:00", "", True),
        ("2026-11-01T08:00:01", "2026-11-01T08:00:00", False),
        ("2026-11-01T07:59:59", "2026-11-01T08:00:00", False),
        ("2026-11-01T08:09:00", "2026-11-01T08:00:00", True),
        ("Sun 8:00", "Sat 8:00", True),
        ("Sun 8:00", "Sun 8:00", False),
    ],
)
def test_one_boot_is_seconds_off_from_itself(now: str, before: str, another: bool) -> None:
    """slurmctld reckons it from the uptime, again with every registration."""
    assert SlurmNodes.is_another_boot(now, before) is another


def test_a_node_that_does_not_restart_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm took the request, and nothing happened."""
    driver, _ = rebooting(tmp_path, monkeypatch, boots=False)
    monkeypatch.setattr(driver, "_end", lambda *_: None)
    driver.evict("node1", Scope.CLUSTER, "broken")
    with pytest.raises(UnavailableError, match="not seen to restart"):
        driver.reboot("node1", "x", "", 0.1)
