"""Checks by real collectives between real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.agent.diagnostics import (
    collectives,
    devices,
    machine_checks,
    meeting,
    rounds,
)
from holdfast.agent.diagnostics.check_part import CheckOutcome, CheckPart
from holdfast.agent.diagnostics.check_process import FindFn
from holdfast.agent.diagnostics.machine_checks import ForkFn, run_check
from holdfast.policies.diagnose.pace import PaceLimits
from tests.agent.diagnostics.scripted_checks import command, pair
from tests.agent.forks import forking
from tests.e2e.waiting import wait_for

CORES = os.cpu_count() or 1


def instead(fork: ForkFn, check: FindFn) -> ForkFn:
    """Run ``check`` in the processes of a check, in place of the one that they are forked for."""
    return lambda run, args: fork(run, (check, args[1]))


def damaging(part: CheckPart) -> CheckOutcome:
    """As all_to_all, on a machine that flips a bit of what process 1 receives."""
    import torch.distributed as dist  # noqa: PLC0415

    exchange = dist.all_to_all_single

    def flip(output: Any, given: Any) -> None:
        exchange(output, given)
        if part.rank == 1:
            output[7] ^= 1

    dist.all_to_all_single = flip  # type: ignore[assignment]
    return collectives.all_to_all(part)


def dying(part: CheckPart) -> CheckOutcome:
    """Process 0 is killed at its start."""
    if part.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return collectives.all_to_all(part)


def stub_gpus(part: CheckPart, count: int) -> list[int]:
    """Have this process find so many GPUs, which are the processor; those that it takes are noted."""
    import torch  # noqa: PLC0415

    taken: list[int] = []

    def take(index: int) -> torch.device:
        taken.append(index)
        return torch.device("cpu")

    devices.gpus = lambda: count
    devices.gpu_ids = lambda count: [f"GPU-{part.rank}-{index}" for index in range(count)]
    devices.take_gpu = take
    return taken


def of_one_host(part: CheckPart) -> CheckOutcome:
    """As all_gather, on a machine that shares its GPUs with the other one: NCCL refuses to connect one with itself."""

    def refused(_: int) -> torch.device:
        raise RuntimeError(
            "ncclInvalidUsage: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 10"
        )

    import torch  # noqa: PLC0415

    stub_gpus(part, 2)
    devices.gpu_ids = lambda count: [f"GPU-{index}" for index in range(count)]
    devices.take_gpu = refused
    return collectives.all_gather(part)


def with_gpus(part: CheckPart) -> CheckOutcome:
    """As all_gather, on a machine with four GPUs of which the third damages a byte that it receives."""
    import torch.distributed as dist  # noqa: PLC0415

    taken, gather = stub_gpus(part, 4), dist.all_gather

    def flip(output: Any, given: Any) -> None:
        gather(output, given)
        if part.prefix.endswith("broken-m0") and part.rank == 0 and taken[-1] == 2:
            output[1][7] ^= 1

    dist.all_gather = flip
    return collectives.all_gather(part)


def of_release_before(part: CheckPart) -> CheckOutcome:
    """As all_gather of an agent that makes no offer, with two GPUs of which it takes the first."""
    met = meeting.met
    meeting.met = lambda part, _: met(part, {})
    stub_gpus(part, 1)
    return collectives.all_gather(replace(part, env={}))


@pytest.mark.torch
def serve_store(folder: str) -> None:
    """Hosts the store that two machines meet at."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415

    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    new = Path(folder) / "port.new"
    new.write_text(str(store.port))
    os.replace(new, Path(folder) / "port")
    signal.pause()


@pytest.fixture(scope="module")
def fork() -> Iterator[ForkFn]:
    """A fork server with torch loaded; what it forked is gone afterwards."""
    with forking("torch", "torch.distributed") as start:
        yield start


@pytest.fixture
def port(fork: ForkFn, tmp_path: Path) -> int:
    """Where a store listens."""
    fork(serve_store, (str(tmp_path),))
    wait_for("the store's port", (tmp_path / "port").exists, every_s=0.01)
    return int((tmp_path / "port").read_text())


class TestRealCollectives:
    """Over gloo, in forked processes."""

    @pytest.mark.parametrize("processes", [2, 3])
    async def test_all_to_all_passes_on_this_machine(self, fork: ForkFn, processes: int) -> None:
        """Every byte arrives."""
        [finding] = await run_check(command(processes=processes), fork, machine="m0")
        assert finding.ok, finding
        assert f"{processes} processes, gloo" in finding.detail

    async def test_flipped_bit_is_found(self, fork: ForkFn) -> None:
        """The control: one wrong bit in a megabyte fails the check, surely."""
        [finding] = await run_check(command(), instead(fork, damaging), machine="m0")
        assert finding.sure
        assert "1 bytes" in finding.detail

    async def test_killed_process_does_not_hold_up_the_check(self, fork: ForkFn) -> None:
        """The check ends soon after, long before its timeout."""
        started = time.monotonic()
        order = command()
        findings = await run_check(order, instead(fork, dying), machine="m0")
        assert time.monotonic() - started < order.timeout_s
        assert any("SIGKILL" in finding.detail for finding in findings)

    async def test_neighbours_exchange_and_may_repeat_it(self, fork: ForkFn, port: int) -> None:
        """Again on the same store, as a playbook that was started again does."""
        for _ in range(3):
            left, right = await asyncio.gather(
                run_check(pair(0, "m1", port), fork, machine="m0"),
                run_check(pair(1, "m0", port), fork, machine="m1"),
            )
            assert left[0].ok, left
            assert right[0].ok, right
            assert (left[0].peer, right[0].peer) == ("m1", "m0")

    async def test_every_gpu_of_a_pair_takes_its_turn(self, fork: ForkFn, port: int) -> None:
        """As many as the job has on each; the one that damages a byte is named, and the pair fails."""
        for peer, gpus in (("m1", 3), ("broken", 4)):
            left, right = await asyncio.gather(
                run_check(pair(0, peer, port, processes=gpus), instead(fork, with_gpus), machine="m0"),
                run_check(pair(1, "m0", port, processes=4), instead(fork, with_gpus), machine=peer),
            )
            assert right[0].ok, right
            assert f"{gpus} of {gpus} GPUs in turn" in right[0].detail
            assert right[0].kind == f"gloo, {gpus} GPUs in turn"
            assert left[0].ok is (peer == "m1"), left
        assert left[0].detail == "1 bytes arrived damaged (GPU 2)"

    async def test_machines_of_one_host_exchange_by_its_processors(self, fork: ForkFn, port: int) -> None:
        """Their GPUs are the same, and a check that cannot pass accused both."""
        left, right = await asyncio.gather(
            run_check(pair(0, "m1", port), instead(fork, of_one_host), machine="m0"),
            run_check(pair(1, "m0", port), instead(fork, of_one_host), machine="m1"),
        )
        assert [(each.ok, each.kind) for each in (*left, *right)] == [(True, "gloo")] * 2, (left, right)

    async def test_a_peer_of_the_release_before_goes_its_own_way(self, fork: ForkFn, port: int) -> None:
        """It takes one turn, and knows of no environment: half a pair on another network accuses both."""
        env = {"GLOO_SOCKET_IFNAME": "no-such-one"}
        left, right = await asyncio.gather(
            run_check(pair(0, "m1", port, processes=4, env=env), instead(fork, with_gpus), machine="m0"),
            run_check(pair(1, "m0", port, env=env), instead(fork, of_release_before), machine="m1"),
        )
        assert left[0].ok, left
        assert right[0].ok, right
        assert "without the job's GLOO_SOCKET_IFNAME" in left[0].detail
        assert left[0].kind == "gloo"

    @pytest.mark.parametrize("interface", ["lo", "no-such-one"])
    async def test_collectives_go_the_jobs_way(self, fork: ForkFn, port: int, interface: str) -> None:
        """An interface that is not there fails, as the job does; inside a machine and between two."""
        env = {"GLOO_SOCKET_IFNAME": interface}
        left, right = await asyncio.gather(
            run_check(pair(0, "m1", port, env=env), fork, machine="m0"),
            run_check(pair(1, "m0", port, env=env), fork, machine="m1"),
        )
        [inside, *_] = await run_check(command(env=env), fork, machine="m0")
        assert [each.ok for each in (*left, *right, inside)] == [interface == "lo"] * 3, (left, right, inside)

    @pytest.mark.parametrize("rank", [0, 1])
    async def test_attempt_left_by_one_side_does_not_spoil_the_next(
        self, fork: ForkFn, port: int, rank: int
    ) -> None:
        """One side came alone and gave up; then both meet."""
        [alone] = await run_check(pair(rank, "m1", port, 0.5), fork, machine="m0")
        assert not alone.ok
        assert not alone.sure
        peer = pair(1 - rank, "m0", port)
        left, right = await asyncio.gather(
            run_check(pair(rank, "m1", port), fork, machine="m0"),
            run_check(peer, fork, machine="m1"),
        )
        assert left[0].ok, left
        assert right[0].ok, right


@pytest.mark.parametrize(("others_s", "expected"), [(0.0, 0.0), (1.0, 0.5), (0.5, 0.25)])
def test_processors_that_others_use_are_distinguished_from_the_checks_own(
    others_s: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes on two cores: what they took is known, and what is missing to it others took."""
    times = type("Times", (tuple,), {"idle": property(lambda self: self[1])})
    monkeypatch.setattr(psutil, "cpu_times", lambda: times((0.0, 0.0)))
    load = machine_checks.Load()
    own_s = 2.0 - 1.0 - others_s
    monkeypatch.setattr(psutil, "cpu_times", lambda: times((own_s + others_s, 1.0)))
    assert load.of_others(own_s) == pytest.approx(expected, abs=0.01)


@pytest.fixture
def hogs() -> Iterator[None]:
    """Others that would use every processor twice over; no more of them, for the sake of the tests beside this one."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * CORES)]
    yield
    for hog in started:
        hog.kill()
        hog.wait()


@pytest.mark.usefixtures("hogs")
async def test_a_host_that_others_keep_busy_says_so_though_the_check_has_a_process_for_each_core(
    fork: ForkFn,
) -> None:
    """Six machines of one host that are checked at once are no slow machines."""
    order = command(processes=max(2, CORES), timeout_s=150, measure=True)
    [finding] = await run_check(order, fork, machine="m1")
    assert finding.ok
    assert finding.busy > PaceLimits().busy


async def test_pace_is_measured_when_asked_for(fork: ForkFn) -> None:
    """A recovery does not wait for rounds whose results are not judged."""
    [plain] = await run_check(command(processes=2), fork, machine="m1")
    [timed] = await run_check(command(processes=2, measure=True), fork, machine="m1")
    assert (plain.ok, plain.value, plain.repeats) == (True, None, 0)
    assert timed.ok
    assert timed.repeats == rounds.ROUNDS
    assert (timed.value or 0) > 0
    assert timed.unit == "MB/s"
