"""A machine is evicted for its GPU and repaired, on a whole site: real agents, real runs, stub tools of the vendor."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.models.machine import MachineState
from holdfast.models.repair import Repair, RepairState
from holdfast.paths import machine_dir
from tests.e2e.site import POLICY, Site
from tests.e2e.waiting import wait_for
from tests.tasks.repair_tools import Tools

pytestmark = pytest.mark.thorough
RESET = "NVRM: Xid (PCI:0000:3b:00): 119, pid=7, name=python, Timeout waiting for RPC from GPU0 GSP!"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    made = Tools(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    return made


@pytest.fixture
def repairing(tmp_path: Path, tools: Tools) -> Iterator[Site]:
    made = Site.up(tmp_path / "site", 4, POLICY + "repair: {enabled: true, burn_in_s: 1, diagnose: '3'}\n")
    yield made
    made.down()


def ended(site: Site, machine: str) -> Repair:
    """The machine's repair, once it is over."""

    def over() -> Repair | None:
        found = site.ledger.repairs(machine=machine)
        return found[0] if found and found[0].state is not RepairState.OPEN else None

    return wait_for(lambda: f"the repair of {machine}: {site.ledger.repairs(machine=machine)}", over)


def test_a_reset_brings_the_machine_back_as_a_standby(repairing: Site, tools: Tools) -> None:
    """The driver's line in its kernel log evicts it; the job trains on with a standby; the machine stands by again."""
    site = repairing
    machine = site.submit("gpt").machines[1]
    with (machine_dir(site.home, machine) / "kernel.log").open("a") as log:
        log.write(f"[{time.monotonic():12.6f}] {RESET}\n")
    incident = site.wait_recovered("gpt")
    repair = ended(site, machine)
    assert repair.state is RepairState.REPAIRED, repair
    assert [step.step.value for step in repair.steps] == ["reset_gpu", "diagnose", "return", "check", "admit"]
    assert tools.calls.count("nvidia-smi --gpu-reset") == 1
    assert "dcgmi diag --run 3 --json" in tools.calls
    assert site.ledger.machine(machine).state is MachineState.STANDBY
    assert machine not in site.job("gpt").machines
    shown = site.http.get(f"/v1/incidents/{incident.id}").json()["repairs"]
    assert [each["machine"] for each in shown] == [machine]


def test_what_the_tools_cannot_repair_stays_out_with_a_ticket(repairing: Site, tools: Tools) -> None:
    """The reset is refused, the restart is done, and EUD still fails."""
    site = repairing
    tools.be(smi="busy", dcgmi="fails")
    machine = site.submit("gpt").machines[0]
    with (machine_dir(site.home, machine) / "kernel.log").open("a") as log:
        log.write(f"[{time.monotonic():12.6f}] {RESET}\n")
    site.wait_recovered("gpt")
    repair = ended(site, machine)
    assert repair.state is RepairState.TICKET, repair
    wanted = ["reset_gpu failed", "restart_machine worked", "diagnose failed", "ticket worked"]
    assert [f"{step.step.value} {step.state.value}" for step in repair.steps] == wanted
    assert "EUD found a failing memory row" in repair.outcome
    assert site.ledger.machine(machine).state is MachineState.CORDONED
