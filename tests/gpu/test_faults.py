"""Real faults of ranks on a real GPU, under a real agent: alerts and verdict of each, as written down beforehand.

A CUDA context that such a fault breaks is the rank's own: its process ends with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass

import psutil
import pytest

from holdfast.models.agent import RankPhase
from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass
from holdfast.policies.classify.decision import JobContext
from holdfast.policies.classify.incident_class import classify, sure_machines
from holdfast.policies.config.policy import Policy
from holdfast.policies.pool import rank_deaths
from tests.agent.gateway import eventually, until
from tests.agent.scripts import fence
from tests.agent.site import AgentProcess
from tests.gpu.load import running
from tests.gpu.machine import WAIT_S, alerts, diagnosed, ended, pids, used_bytes
from tests.gpu.recorded import measured, output, record
from tests.policies.make import job as some_job

pytestmark = pytest.mark.e2e
POLICY = Policy.load()
JOB = some_job(machines=2, per=1, epoch=1)
FREED_BYTES = 1 << 30
"""Memory that a process that is gone may leave in use, for as long as the driver takes."""
GONE_S = 10.0
KERNEL_LOG_S = 4.0
"""Time in which the driver's line and event of a fault come, if any do."""

BEYOND = """
import torch
kernel = torch.cuda._compile_kernel(
    'extern "C" __global__ void beyond(float* given, int far) '
    '{ given[((long long) far << 20) + threadIdx.x] = 1.0f; }',
    "beyond",
)
given = torch.zeros(1024, device="cuda")
def step():
    kernel(grid=(1, 1, 1), block=(32, 1, 1), args=[given, 1 << 20])
    return given.sum().item()
print("step", flush=True)
step()
"""
ASSERTS = """
import torch
words = torch.nn.Embedding(128, 16, device="cuda")
def step():
    return words(torch.tensor([5, 128], device="cuda")).sum().item()
print("step", flush=True)
step()
"""
FILLS = """
import torch
held = []
def step():
    while True:
        held.append(torch.empty(4 << 30, dtype=torch.uint8, device="cuda"))
step()
"""
NOT_THERE = """
import torch
print(torch.zeros(1, device="cuda"))
"""
WRONG_NUMBER = """
import torch
torch.cuda.set_device(7)
"""
FORKS = """
import os, sys, torch
weight = torch.ones(4, device="cuda")
child = os.fork()
if child == 0:
    (weight + 1).sum().item()
    os._exit(0)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""
WORKERS = """
import torch
class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, at):
        return torch.ones(1, device="cuda") * at
def train():
    for batch in torch.utils.data.DataLoader(Items(), num_workers=1):
        pass
torch.zeros(1, device="cuda")
train()
"""
NOT_FINITE = """
import torch
torch.autograd.set_detect_anomaly(True)
weight = torch.zeros(64, device="cuda", requires_grad=True)
def step():
    (weight.sqrt() * 0.0).sum().backward()
step()
"""
WRONG_LAUNCH = """
import torch
kernel = torch.cuda._compile_kernel('extern "C" __global__ void none(float* given) {}', "none")
def step():
    kernel(grid=(1, 1, 1), block=(2048, 1, 1), args=[torch.zeros(8, device="cuda")])
step()
"""
TWICE = """
import os, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(0)
store = dist.FileStore(os.environ["MEETING"], 2)
dist.init_process_group("nccl", store=store, rank=rank, world_size=2)
def step():
    dist.all_reduce(torch.ones(4, device="cuda"))
    torch.cuda.synchronize()
step()
"""
BUSY = """
import time, torch
size = 16384
left = torch.randn(size, size, device="cuda")
out = left @ left
torch.cuda.synchronize()
print("step", flush=True)
while True:
    for _ in range(50):
        torch.mm(left, left, out=out)
    torch.cuda.synchronize()
"""
SPINS = """
import torch
kernel = torch.cuda._compile_kernel(
    'extern "C" __global__ void spin(int* stop) { while (*(volatile int*) stop == 0) {} }', "spin"
)
stop = torch.zeros(1, dtype=torch.int32, device="cuda")
def step():
    kernel(grid=(1, 1, 1), block=(1, 1, 1), args=[stop])
    print("step", flush=True)
    torch.cuda.synchronize()
step()
"""


@dataclass(frozen=True)
class Fault:
    """A script, and the label that it got before it was run on a GPU."""

    name: str
    script: str
    expect: IncidentClass = IncidentClass.JOB_CRASH
    words: str = ""
    """Of its log."""
    counts: bool | None = False
    """Whether it counts against its machine where it comes again; None: it may, or not."""
    xids: frozenset[int] | None = frozenset()
    """The driver's numbers, of which at least one comes; empty: none does. None: the driver decides."""
    env: tuple[tuple[str, str], ...] = ()


FAULTS = (
    Fault("beyond", BEYOND, words="illegal memory access", counts=None, xids=frozenset({31, 13})),
    Fault("asserts", ASSERTS, words="device-side assert triggered", xids=None),
    Fault("fills", FILLS, words="CUDA out of memory"),
    Fault("notthere", NOT_THERE, words="No CUDA GPUs are available", env=(("CUDA_VISIBLE_DEVICES", "7"),)),
    Fault("wrongnumber", WRONG_NUMBER, words="invalid device ordinal"),
    Fault("forks", FORKS, words="CUDA error: initialization error"),
    Fault("workers", WORKERS, words="Cannot re-initialize CUDA in forked subprocess"),
    Fault("notfinite", NOT_FINITE, IncidentClass.NAN_LOSS, words="returned nan values"),
    Fault("wronglaunch", WRONG_LAUNCH, words="invalid"),
)


def as_of_the_job(found: Alert) -> Alert:
    """The alert, of the job that verdicts are given about."""
    return found.model_copy(update={"job": "gpt", "epoch": 1, "incarnation": ""})


def verdict(*found: Alert) -> tuple[str, tuple[str, ...]]:
    """The class of an incident with these alerts, and the machines that would be evicted at once."""
    given = [as_of_the_job(each) for each in found]
    context = JobContext(job=JOB, now=max(each.at for each in given))
    answer = classify(given, context, POLICY)
    name = answer.incident_class.value if isinstance(answer, Classification) else type(answer).__name__
    return name, sure_machines(given, context, POLICY)


def note(name: str, agent: AgentProcess, found: list[Alert], job: str) -> None:
    """Keep the messages of the rank and the driver, for the corpus."""
    record(f"fault-{name}.log", agent.log(job))
    record(f"fault-{name}.json", "\n".join(each.model_dump_json(indent=1) for each in found))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_a_fault_gets_its_verdict(agent: AgentProcess, fault: Fault) -> None:
    """The class, and no machine accused; the driver's Xid is seen, and names the rank's process."""
    since = time.time()
    agent.script(fault.name, fault.script)
    async with agent.client as client:
        started = await client.start(agent.start(fault.name, ranks=(0,), world_size=1, env=dict(fault.env)))
    [exit_] = ended(agent, fault.name)
    took_s = exit_.at - since
    if fault.xids:
        until(lambda: alerts(agent, AlertKind.XID, since=since), KERNEL_LOG_S, "an Xid")
    xids = alerts(agent, AlertKind.XID, since=since)
    note(fault.name, agent, [exit_, *xids], fault.name)
    codes = {int(each.evidence["xid"]) for each in xids}
    evidence = {
        key: exit_.evidence.get(key) for key in ("error_type", "message", "pattern", "cause", "user_frame")
    }
    measured(f"{fault.name}: ended after {took_s:.1f} s, Xids {sorted(codes)}, {evidence}")
    assert fault.words in agent.log(fault.name)
    if fault.xids:
        assert codes & fault.xids
        by_pid = {each.evidence.get("pid") for each in xids if each.evidence["xid"] in fault.xids}
        assert by_pid == {started[0].pid}, [each.evidence for each in xids]
    elif fault.xids is not None:
        assert codes == set()
    assert verdict(exit_, *xids) == (fault.expect.value, ())
    died = rank_deaths.death(as_of_the_job(exit_), time.time(), None, POLICY.classify)
    if fault.counts is not None:
        assert (died is not None and not died.raised) == fault.counts


async def test_two_ranks_on_one_gpu_are_refused_by_nccl(agent: AgentProcess) -> None:
    """A setup that cannot work: no machine is at fault."""
    agent.script("twice", TWICE)
    meeting = str(agent.folder / "meeting")
    async with agent.client as client:
        await client.start(agent.start("twice", env={"MEETING": meeting, "NCCL_DEBUG": "WARN"}))
        try:
            found = await asyncio.to_thread(ended, agent, "twice", 2)
        finally:
            await client.fence(fence(agent, "twice"))
    record("fault-twice-1.log", agent.log("twice", rank=1))
    note("twice", agent, found, "twice")
    measured(f"two ranks on one GPU: {[(each.rank, each.evidence.get('pattern')) for each in found]}")
    assert any("Duplicate GPU detected" in agent.log("twice", rank) for rank in (0, 1))
    one = found[0].model_copy(update={"rank": 0})
    assert verdict(one) == (IncidentClass.JOB_CRASH.value, ())
    died = rank_deaths.death(as_of_the_job(one), time.time(), None, POLICY.classify)
    assert died is None or died.raised


async def test_a_kernel_that_never_ends_is_seen_and_killed(agent: AgentProcess) -> None:
    """Its stack names the wait, the GPU looks busy and its tensor cores rest; the rank dies, and the GPU is free."""
    agent.script("spins", SPINS)
    before = used_bytes()
    async with agent.client as client:
        [rank] = await client.start(agent.start("spins", ranks=(0,), world_size=1))
        until(lambda: "step" in agent.log("spins"), WAIT_S, f"a step:\n{agent.log('spins')}")
        frames = await eventually(lambda: _stack(agent), 15.0)
        measured(f"its stack: {frames[:6]}")
        assert any("synchronize" in each for each in frames)
        beats = len(agent.gateway.heartbeats)
        vitals = until(
            lambda: next(
                (
                    b.vitals
                    for b in agent.gateway.heartbeats[beats:]
                    if b.vitals and (b.vitals.gpu_busy or 0) > 0.9
                ),
                None,
            ),
            15.0,
            "a busy GPU in a heartbeat",
        )
        measured(f"meanwhile: {vitals}")
        began = time.monotonic()
        await client.fence(fence(agent, "spins"))
        fenced_s = time.monotonic() - began
    until(lambda: not psutil.pid_exists(rank.pid), GONE_S, "the rank to be gone")
    gone_s = time.monotonic() - began
    until(lambda: used_bytes() < before + FREED_BYTES, GONE_S, "its memory to be free")
    measured(
        f"a rank in a kernel that never ends: fenced in {fenced_s:.2f} s, gone after {gone_s:.2f} s, its memory free "
        f"after {time.monotonic() - began:.2f} s"
    )
    assert rank.pid not in pids()
    [found] = await diagnosed(agent, "matmul")
    assert found.ok


async def _stack(agent: AgentProcess) -> list[str]:
    async with agent.client as client:
        dumps = await client.stacks("spins", 1)
    main = [each for each in dumps if each.thread == "MainThread" and not each.child]
    return [frame.function for each in main for frame in each.frames]


async def test_a_rank_that_is_killed_amid_its_kernels_leaves_nothing(agent: AgentProcess) -> None:
    """SIGKILL, as the kernel's OOM killer sends it: no Xid that asks for anything, the memory is free in a moment."""
    since, before = time.time(), used_bytes()
    agent.script("busy", BUSY)
    async with agent.client as client:
        [rank] = await client.start(agent.start("busy", ranks=(0,), world_size=1))
    until(lambda: "step" in agent.log("busy"), WAIT_S, f"a step:\n{agent.log('busy')}")
    began = time.monotonic()
    os.kill(rank.pid, signal.SIGKILL)
    [exit_] = ended(agent, "busy")
    until(lambda: used_bytes() < before + FREED_BYTES, GONE_S, "its memory to be free")
    measured(f"killed amid its kernels: memory free after {time.monotonic() - began:.2f} s")
    xids = alerts(agent, AlertKind.XID, since=since)
    note("busy", agent, [exit_, *xids], "busy")
    assert exit_.evidence["signal"] == "SIGKILL"
    assert verdict(exit_, *xids) == (IncidentClass.JOB_CRASH.value, ())


async def test_a_neighbour_that_finds_no_memory_accuses_no_machine(agent: AgentProcess) -> None:
    """Another process has it all: the rank's start fails for want of memory, which is no fault of the GPU."""
    with running("products", 0.995):
        agent.script("late", BUSY)
        async with agent.client as client:
            await client.start(agent.start("late", ranks=(0,), world_size=1))
        [exit_] = ended(agent, "late")
    note("late", agent, [exit_], "late")
    measured(f"a start beside a full GPU: {exit_.evidence.get('message')}, {exit_.evidence.get('pattern')}")
    assert exit_.evidence.get("cause") == "gpu_memory"
    assert verdict(exit_) == (IncidentClass.JOB_CRASH.value, ())
    died = rank_deaths.death(as_of_the_job(exit_), time.time(), None, POLICY.classify)
    assert died is None or died.raised


async def test_a_machine_is_well_after_all_of_it(agent: AgentProcess) -> None:
    """No rank is left, its inspection accuses nothing, and there is no report of a lost GPU."""
    record("dmesg-after-faults.txt", output("dmesg"))
    async with agent.client as client:
        state = await client.state()
    assert not [rank for run in state.jobs for rank in run.ranks if rank.phase is not RankPhase.EXITED]
    found = await diagnosed(agent, "inspect")
    assert [each.detail for each in found if each.sure and not each.ok] == []
    assert alerts(agent, AlertKind.GPU_LOST) == []
