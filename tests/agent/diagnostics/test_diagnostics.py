"""Stop-time checks: judged from scripted processes, and run in real ones."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.agent.diagnostics import (
    meeting,
    warm_checks,
)
from holdfast.agent.diagnostics.check_part import CheckOutcome, CheckPart
from holdfast.agent.diagnostics.machine_checks import run_check
from holdfast.agent.diagnostics.warm_checks import Bench
from holdfast.errors import SettingsError
from holdfast.models.agent import Diagnose
from tests.agent.diagnostics.scripted_checks import GOOD, ScriptedForks, command, pair


async def test_healthy_machine_passes_with_its_bandwidth() -> None:
    """One finding for the machine."""
    [finding] = await run_check(command(processes=2), ScriptedForks(GOOD, GOOD), machine="m1")
    assert finding.ok
    assert finding.machine == "m1"
    assert "1000 MB/s" in finding.detail
    assert finding.seconds > 0


async def test_damaged_bytes_inside_a_machine_are_sure() -> None:
    """No other machine can be the cause."""
    forks = ScriptedForks(GOOD, CheckOutcome(wrong_bytes={0: 17}))
    [finding] = await run_check(command(), forks, machine="m1")
    assert not finding.ok
    assert finding.sure
    assert "17 bytes from process 0 to process 1" in finding.detail


async def test_process_that_dies_is_a_failure_that_is_not_sure() -> None:
    """The finding states how it died; the others are killed after a short wait."""
    forks = ScriptedForks(-signal.SIGBUS, None)
    started = time.monotonic()
    order = command(timeout_s=30)
    findings = await run_check(order, forks, machine="m1")
    assert time.monotonic() - started < order.timeout_s
    assert not any(finding.ok or finding.sure for finding in findings)
    assert "SIGBUS" in findings[0].detail
    assert forks.forked[1].killed


async def test_stuck_check_ends_at_its_timeout() -> None:
    """And leaves no process."""
    forks = ScriptedForks(None, None)
    findings = await run_check(command(timeout_s=0.05), forks, machine="m1")
    assert all("not finished" in finding.detail for finding in findings)
    assert all(process.killed for process in forks.forked)


async def test_process_with_an_outcome_is_not_killed() -> None:
    """Its peer may still be reading from it."""
    forks = ScriptedForks(GOOD)
    await run_check(pair(0, "m2"), forks, machine="m1")
    assert not forks.forked[0].killed


async def test_trouble_with_the_peer_may_be_either_side() -> None:
    """Damage on the way and timeouts name the pair and are not sure."""
    for outcome in (CheckOutcome(wrong_bytes={1: 4}), CheckOutcome(error="timeout"), None):
        order = pair(0, "m2", timeout_s=90.0 if outcome else 0.1)
        [finding] = await run_check(order, ScriptedForks(outcome), machine="m1")
        assert (finding.ok, finding.sure, finding.machine, finding.peer) == (False, False, "m1", "m2")


async def test_own_bytes_that_come_back_damaged_are_our_own_fault() -> None:
    """They never left the machine."""
    [finding] = await run_check(pair(1, "m2"), ScriptedForks(CheckOutcome(wrong_bytes={1: 4})), machine="m1")
    assert finding.sure
    assert finding.peer is None


@pytest.mark.parametrize(("reached_by", "used"), [("eth7", "eth7"), ("", None)])
def test_a_process_that_checked_its_own_machine_leaves_it_for_the_next_check(
    reached_by: str, used: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All-to-all goes over the loopback; no other machine is reached by that."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.setattr(meeting, "_GIVEN", "")
    monkeypatch.setattr(meeting, "interface_to", lambda host, port: reached_by)
    inside = CheckPart(rank=0, size=2, folder="", timeout_s=1)
    for part, interface in ((inside, "lo"), (replace(inside, host="10.9.9.9", port=5), used), (inside, "lo")):
        meeting.bind(part)
        assert os.environ.get("GLOO_SOCKET_IFNAME") == interface


def test_the_interface_is_that_of_the_route_to_the_other_machine() -> None:
    """This machine's own address is reached by it too: the first of a pair is asked for itself."""
    assert meeting.interface_to("127.0.0.1", 9) == "lo"


async def test_a_jobs_way_over_the_network_has_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL reads its variables once in a process: none that went another way is taken, and none is left behind."""
    monkeypatch.setattr(warm_checks, "_CLAIM_S", 0.0)
    forks = ScriptedForks(*[replace(GOOD, environment="1a2b")] * 3)
    bench, env = Bench(forks), {"NCCL_IB_HCA": "mlx5_1"}
    for given in ({}, env, env):
        [found] = await run_check(pair(0, "m2", env=given), forks, machine="m1", bench=bench)
    assert [part.env for part in forks.parts] == [{}, env, env]
    assert [bool(part.stay) for part in forks.parts] == [True, False, False]
    assert found.detail.endswith("with the job's NCCL_IB_HCA")
    assert found.kind == "gloo, environment 1a2b"


async def test_both_sides_of_a_pair_meet_under_one_name() -> None:
    """Whatever the order of their names."""
    left, right = ScriptedForks(GOOD), ScriptedForks(GOOD)
    await run_check(pair(0, "m2"), left, machine="m1")
    await run_check(pair(1, "m1"), right, machine="m2")
    assert left.parts[0].prefix == right.parts[0].prefix


@pytest.mark.parametrize(
    "incomplete",
    [command("inspect"), command("all_gather"), command("all_gather", peer="m2", process_rank=2)],
)
async def test_incomplete_command_is_refused(incomplete: Diagnose) -> None:
    """The message names the missing part; nothing is started."""
    forks = ScriptedForks()
    with pytest.raises(SettingsError, match="needs"):
        await run_check(incomplete, forks, machine="m1")
    assert forks.forked == []


def test_torn_outcome_is_no_outcome(tmp_path: Path) -> None:
    """Reading one raises what the caller expects."""
    path = tmp_path / "0.json"
    CheckOutcome(wrong_bytes={2: 5}).write(path)
    assert CheckOutcome.read(path).wrong_bytes == {2: 5}
    path.write_text("{")
    with pytest.raises(ValueError, match="Expecting"):
        CheckOutcome.read(path)
