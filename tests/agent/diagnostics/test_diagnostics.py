"""Stop-time checks: judged from scripted processes, and run in real ones."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from holdfast.agent.diagnostics import (
    collectives,
    devices,
    machine_checks,
    machine_state,
    meeting,
    rounds,
    warm_checks,
)
from holdfast.agent.diagnostics.check_part import CheckOutcome, CheckPart
from holdfast.agent.diagnostics.check_process import FindFn
from holdfast.agent.diagnostics.machine_checks import ForkFn, run_check
from holdfast.agent.diagnostics.warm_checks import Bench
from holdfast.errors import SettingsError
from holdfast.models.agent import Diagnose, Rendezvous
from holdfast.policies.diagnose.pace import PaceLimits
from tests.agent.forks import forking
from tests.e2e.waiting import wait_for


class Ended:
    """A process that did its work at once."""

    def __init__(self, exitcode: int | None = 0) -> None:
        self.exitcode = exitcode
        self.killed = False

    def kill(self) -> None:
        self.killed, self.exitcode = True, -signal.SIGKILL


class ScriptedForks:
    """Forks processes that leave the outcomes they are told to; None: they run for ever."""

    def __init__(self, *outcomes: CheckOutcome | int | None) -> None:
        self.outcomes = outcomes
        self.forked: list[Ended] = []
        self.parts: list[CheckPart] = []

    def __call__(self, target: Callable[..., None], args: tuple[Any, ...]) -> Ended:
        _, part = args
        self.parts.append(part)
        outcome = self.outcomes[len(self.forked)]
        process = Ended(outcome if isinstance(outcome, int) else None if outcome is None else 0)
        if isinstance(outcome, CheckOutcome):
            outcome.write(part.outcome_path)
        self.forked.append(process)
        return process


CORES = os.cpu_count() or 1
GOOD = CheckOutcome(backend="gloo", value=1000.0, unit="MB/s", repeats=5)


def command(check: str = "all_to_all", *, timeout_s: float = 90.0, **more: Any) -> Diagnose:
    return Diagnose(job="j", epoch=3, incarnation="i", check=check, timeout_s=timeout_s, **more)


def pair(rank: int, peer: str, port: int = 1, timeout_s: float = 90.0, **more: Any) -> Diagnose:
    return command(
        "all_gather",
        peer=peer,
        process_rank=rank,
        rendezvous=Rendezvous(host="127.0.0.1", port=port),
        timeout_s=timeout_s,
        **more,
    )


async def test_healthy_machine_passes_with_its_bandwidth() -> None:
    """One finding for the machine."""
    [finding] = await run_check(command(processes=2), ScriptedForks(GOOD, GOOD), machine="m1")
    assert finding.ok
    assert finding.machine == "m1"
    assert "1000 MB/s" in finding.detail
    assert finding.seconds > 0


@pytest.mark.parametrize(
    ("check", "whole", "ranks"),
    [("matmul", True, 8), ("all_to_all", True, 8), ("disk", True, 1), ("matmul", False, 1)],
)
async def test_all_gpus_of_a_machine_that_serves_no_job_take_part(
    check: str, whole: bool, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no ranks, so that one process is asked for. Beside a job some GPUs are a role's replicas'."""
    monkeypatch.setattr(machine_checks, "visible_gpus", lambda: 8)
    forks = ScriptedForks(*[GOOD] * ranks)
    await run_check(command(check, processes=1, whole=whole), forks, machine="m1")
    assert [(part.rank, part.size) for part in forks.parts] == [(rank, ranks) for rank in range(ranks)]


class EightGpus:
    """NVIDIA's library on a machine with eight; number 3 is full."""

    NVMLError = RuntimeError

    @staticmethod
    def nvmlDeviceGetCount() -> int:  # noqa: N802  (its name)
        return 8

    @staticmethod
    def nvmlDeviceGetHandleByIndex(index: int) -> int:  # noqa: N802
        return index

    @staticmethod
    def nvmlDeviceGetMemoryInfo(gpu: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(free=(1 if gpu == 3 else 40) << 30)


def show_gpus(shown: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the agent see those that ``CUDA_VISIBLE_DEVICES`` names; None: it is not set."""
    monkeypatch.setattr(machine_state, "_nvml", lambda: EightGpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)


@pytest.mark.parametrize(
    ("shown", "seen"),
    [(None, 8), ("", 0), ("3", 1), ("0,1,2", 3), ("-1", 0), ("NoDevFiles", 0), ("GPU-3f, 1,x,2", 2)],
)
def test_gpus_that_are_hidden_take_no_part(
    shown: str | None, seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process for a GPU that torch does not see would test the processor instead."""
    show_gpus(shown, monkeypatch)
    assert machine_state.visible_gpus() == seen


@pytest.mark.parametrize(("check", "forked"), [("matmul", 0), ("all_to_all", 0), ("disk", 1)])
async def test_gpus_that_a_job_fills_are_not_tested_beside_it(
    check: str, forked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check could fail for lack of memory, and so could the job. The disk is tested all the same."""
    monkeypatch.setattr(machine_checks, "without_room", lambda ranks: f"GPU {max(ranks)} has 1.2 GiB")
    forks = ScriptedForks(GOOD)
    found = await run_check(command(check, processes=2), forks, machine="m1", beside=True)
    assert all(finding.ok for finding in found)
    assert len(forks.parts) == forked
    assert forked or [finding.detail for finding in found] == ["not tested: GPU 1 has 1.2 GiB, beside a job"]


async def test_a_driver_that_hangs_holds_up_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs with a GPU that is lost; what it does not answer is not known."""
    go = threading.Event()

    def hang(*_: object) -> None:
        go.wait(60)

    monkeypatch.setattr(machine_checks, "DRIVER_S", 0.05)
    monkeypatch.setattr(machine_checks.NvmlSettings, "read", hang)
    monkeypatch.setattr(machine_checks, "visible_gpus", hang)
    forks = ScriptedForks(GOOD)
    try:
        found = await run_check(command("matmul", processes=1, whole=True), forks, machine="m1")
    finally:
        go.set()
    assert [finding.ok for finding in found] == [True]


async def test_what_the_driver_took_is_not_waited_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes hang with the driver: the caller would be gone when the findings are there."""
    given: list[float] = []

    async def run(
        parts: list[CheckPart], _target: object, _bench: Bench, timeout_s: float
    ) -> dict[int, CheckOutcome]:
        given.append(timeout_s)
        return {part.rank: GOOD for part in parts}

    async def silent(_ask: object, otherwise: object) -> object:
        await asyncio.sleep(0.05)
        return otherwise

    monkeypatch.setattr(machine_checks, "_of_driver", silent)
    monkeypatch.setattr(machine_checks, "_run", run)
    await run_check(command("matmul", processes=1, whole=True), ScriptedForks(), machine="m1")
    assert given[0] <= 90.0 - 0.09


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (None, ""),
        ("2,3", "GPU 3 has 1.0 GiB of memory free, and a check may take 4 GiB"),
        ("2", ""),
        ("", ""),
        ("GPU-3f,GPU-4a", ""),
    ],
)
def test_room_on_the_gpus_that_a_check_takes(
    shown: str | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two that are visible; another one is full."""
    show_gpus(shown, monkeypatch)
    assert machine_state.without_room(range(2)) == why


@pytest.mark.torch
@pytest.mark.parametrize(
    ("seen", "why", "fails"),
    [
        (8, "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", True),
        (8, "The NVIDIA driver on your system is too old (found version 11040)", False),
        (0, "No CUDA GPUs are available", False),
        (8, "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, ...", False),
    ],
)
def test_gpus_that_torch_cannot_use_are_not_tested_by_the_processor(
    seen: int, why: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver shows them, and every rank would fail on them."""
    torch = pytest.importorskip("torch")

    def init() -> None:
        raise RuntimeError(why)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(machine_state, "visible_gpus", lambda: seen)
    if fails:
        with pytest.raises(RuntimeError, match="Error 802"):
            devices.gpus()
    else:
        assert devices.gpus() == 0


async def test_damaged_bytes_inside_a_machine_are_sure() -> None:
    """No other machine can be the cause."""
    forks = ScriptedForks(GOOD, CheckOutcome(wrong_bytes={0: 17}))
    [finding] = await run_check(command(), forks, machine="m1")
    assert not finding.ok
    assert finding.sure
    assert "17 bytes from process 0 to process 1" in finding.detail


async def test_process_that_dies_is_a_failure_that_is_not_sure() -> None:
    """The finding says how it died; the others are not waited for long, and are killed."""
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


@pytest.mark.parametrize(("whole", "gpus"), [(False, 4), (True, 0)])
async def test_as_many_gpus_of_a_pair_take_part_as_the_job_uses(whole: bool, gpus: int) -> None:
    """All (0) of a machine that serves no job."""
    forks = ScriptedForks(GOOD)
    await run_check(pair(0, "m2", processes=4, whole=whole), forks, machine="m1")
    assert [(part.size, part.gpus) for part in forks.parts] == [(2, gpus)]


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
    """The message says what is missing; nothing is started."""
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


# Real processes from here on.


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


@pytest.mark.torch
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


@pytest.mark.parametrize(("others_s", "said"), [(0.0, 0.0), (1.0, 0.5), (0.5, 0.25)])
def test_processors_that_others_use_are_told_from_the_checks_own(
    others_s: float, said: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes on two cores: what they took is known, and what is missing to it others took."""
    times = type("Times", (tuple,), {"idle": property(lambda self: self[1])})
    monkeypatch.setattr(psutil, "cpu_times", lambda: times((0.0, 0.0)))
    load = machine_checks.Load()
    own_s = 2.0 - 1.0 - others_s
    monkeypatch.setattr(psutil, "cpu_times", lambda: times((own_s + others_s, 1.0)))
    assert load.of_others(own_s) == pytest.approx(said, abs=0.01)


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
    """A recovery does not wait for rounds that nobody judges."""
    [plain] = await run_check(command(processes=2), fork, machine="m1")
    [timed] = await run_check(command(processes=2, measure=True), fork, machine="m1")
    assert (plain.ok, plain.value, plain.repeats) == (True, None, 0)
    assert timed.ok
    assert timed.repeats == rounds.ROUNDS
    assert (timed.value or 0) > 0
    assert timed.unit == "MB/s"
