"""Nothing that the ranks of an epoch started is left behind: real processes that do what they can to stay."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from holdfast.agent.ranks import proc
from holdfast.agent.ranks.epoch_groups import EpochGroups, parent_of_groups
from holdfast.agent.ranks.jobs import RunningJobs
from holdfast.agent.ranks.remains import Remains
from holdfast.agent.ranks.run import Run
from holdfast.errors import UnavailableError
from holdfast.models.agent import Start
from tests.agent.gateway import FakeGateway, until
from tests.agent.scripts import SLEEP, fence
from tests.agent.site import NOWHERE, AgentProcess

pytestmark = pytest.mark.e2e

DAEMONS = """
import os, socket, subprocess, sys, time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
here = Path(sys.argv[1])
def note(name, *words):
    (here / f"{name}.new").write_text(" ".join(map(str, words)))
    (here / f"{name}.new").rename(here / name)
def daemon(name, body):
    "As a daemon is made: two forks, a session of its own, no descriptors."
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            os.closerange(3, 64)
            body(name)
        os._exit(0)
    os.wait()
def listen(name):
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    held.listen()
    note(name, os.getpid(), held.getsockname()[1])
    time.sleep(600)
def bare(name):
    "Executed with an empty environment."
    note(name, os.getpid())
    os.execve("/bin/sleep", ["sleep", "600"], {})
daemon("forked", listen)
daemon("bare", bare)
sleep = subprocess.Popen(["sleep", "600"], start_new_session=True)
note("session", sleep.pid)
print("up")
"""
HELD = ("forked", "bare", "session")
GROUPED = parent_of_groups(os.environ) is not None
"""Whether epochs have control groups on this host."""


def groups_of(agent: AgentProcess) -> list[Path]:
    return EpochGroups(agent.folder, parent_of_groups(os.environ))._folders("")


def started(folder: Path, names: tuple[str, ...] = HELD) -> list[psutil.Process]:
    """The processes that a script wrote down in ``folder``."""
    until(lambda: all((folder / name).exists() for name in names), what=f"{names} in {folder}")
    return [psutil.Process(int((folder / name).read_text().split()[0])) for name in names]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that are there; a zombie holds nothing."""
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def bystander() -> Iterator[psutil.Process]:
    """A user's own process on the same host."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


@pytest.mark.parametrize("dead", [True, False], ids=["rank-was-killed", "rank-lives"])
async def test_what_ranks_leave_is_gone_after_a_fence(
    agent: AgentProcess, gateway: FakeGateway, tmp_path: Path, bystander: psutil.Process, dead: bool
) -> None:
    """Sessions of their own, daemons and cleaned environments do not help; other people's processes stay."""
    job = f"leaves-{dead}".lower()
    agent.script(job, DAEMONS + SLEEP)
    async with agent.client as client:
        start = agent.start(job, ranks=(0,), world_size=1, args=(str(tmp_path),))
        (rank,) = await client.start(start)
        left = started(tmp_path)
        port = int((tmp_path / "forked").read_text().split()[1])
        if dead:
            os.kill(rank.pid, signal.SIGKILL)
            until(lambda: not psutil.pid_exists(rank.pid))
            assert alive(left) == left, "control: they outlive their rank"
        await client.fence(fence(agent, job))
    assert alive(left) == []
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", port))
    assert alive([bystander])


SHARED = """
import os, sys, time
from multiprocessing import shared_memory
from pathlib import Path
here = Path(sys.argv[1])
held = shared_memory.SharedMemory(create=True, size=1 << 20)
if os.fork() == 0:
    of_child = shared_memory.SharedMemory(create=True, size=1 << 20)
    (here / "child").write_text(of_child.name)
    time.sleep(600)
(here / "rank").write_text(held.name)
"""


@pytest.mark.parametrize("dead", [True, False], ids=["rank-was-killed", "rank-lives"])
async def test_shared_memory_of_ranks_is_gone_after_a_fence(
    agent: AgentProcess, tmp_path: Path, dead: bool
) -> None:
    """Of a rank and of what it forked, whether they are killed by the agent or were before."""
    job = f"shares-{dead}".lower()
    agent.script(job, SHARED + SLEEP)
    async with agent.client as client:
        (rank,) = await client.start(agent.start(job, ranks=(0,), world_size=1, args=(str(tmp_path),)))
        names = [tmp_path / "rank", tmp_path / "child"]
        until(lambda: all(name.exists() and name.read_text() for name in names))
        files = [Path("/dev/shm", name.read_text()) for name in names]
        assert all(file.exists() for file in files)
        if dead:
            os.kill(rank.pid, signal.SIGKILL)
        await client.fence(fence(agent, job))
    assert [file for file in files if file.exists()] == []


async def test_other_jobs_keep_what_they_started(agent: AgentProcess, tmp_path: Path) -> None:
    """Two jobs on one machine: only the fenced one's processes end, and nothing is guessed."""
    folders = {job: tmp_path / job for job in ("one", "other")}
    async with agent.client as client:
        for job, folder in folders.items():
            folder.mkdir()
            agent.script(job, DAEMONS + SLEEP)
            await client.start(agent.start(job, ranks=(0,), world_size=1, args=(str(folder),)))
        kept = started(folders["other"])
        forked, bare, session = started(folders["one"])
        os.kill((await client.state()).jobs[0].ranks[0].pid, signal.SIGKILL)
        await client.fence(fence(agent, "one"))
        assert alive([forked, session]) == []
        if GROUPED:
            assert alive([bare]) == []
        assert alive(kept) == kept
        await client.fence(fence(agent, "other"))
    # Without groups the owner of the one without an environment was unknown, until the machine was the other
    # job's alone.
    assert alive([*kept, bare]) == []
    assert groups_of(agent) == []


FORKS = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
here = Path(sys.argv[1])
if os.fork() == 0:
    os.setsid()
    (here / "first").write_text(str(os.getpid()))
    while True:  # a chain: each forks the next and ends
        if os.fork():
            os._exit(0)
        (here / "newest").write_text(str(os.getpid()))
print("up")
"""


async def test_what_forks_while_it_is_killed_is_gone(agent: AgentProcess, tmp_path: Path) -> None:
    """Each look finds another one, until none does."""
    agent.script("forks", FORKS + SLEEP)
    async with agent.client as client:
        await client.start(agent.start("forks", ranks=(0,), world_size=1, args=(str(tmp_path),)))
        until((tmp_path / "newest").exists)
        await client.fence(fence(agent, "forks"))
    server = psutil.Process(agent.process.pid).children()
    marked = [
        p
        for p in psutil.Process(agent.process.pid).children(recursive=True)
        if b"forks-e1" in proc.maps(p.pid)
    ]
    assert server
    assert alive(marked) == []


async def test_the_next_agent_ends_what_a_dead_one_left(
    agent: AgentProcess, home: Path, gateway: FakeGateway, tmp_path: Path, bystander: psutil.Process
) -> None:
    """SIGKILL of an agent: daemons of its ranks stay, until the machine has an agent again; another machine's stay."""
    first = AgentProcess(home, "m3", gateway, HOLDFAST_PRELOAD="json").ready()
    folders = {machine: tmp_path / machine.machine for machine in (first, agent)}
    for machine, folder in folders.items():
        folder.mkdir()
        machine.script("toy", DAEMONS + SLEEP)
        async with machine.client as client:
            await client.start(machine.start("toy", ranks=(0,), world_size=1, args=(str(folder),)))
    forked, bare, session = started(folders[first])
    kept = started(folders[agent])
    first.stop(signal.SIGKILL)
    try:
        assert alive([forked, session]) == [forked, session], "control: they outlive their agent"
        second = AgentProcess(home, "m3", gateway, HOLDFAST_PRELOAD="json").ready()
        assert alive([forked, session]) == []
        if GROUPED:
            assert alive([bare]) == []
        assert alive([*kept, bystander]) == [*kept, bystander]
        second.script("toy", DAEMONS + SLEEP)
        (folders[first] / "session").unlink()
        async with second.client as client:
            await client.start(second.start("toy", 2, ranks=(0,), world_size=1, args=(str(folders[first]),)))
        left = started(folders[first])
        assert second.stop() == 0
        assert alive(left) == [], "an agent that is asked to end takes all with it"
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            bare.kill()
    async with agent.client as client:
        await client.fence(fence(agent, "toy"))
    assert alive(kept) == []


class Adopting:
    """As a fork server whose children are the test's own."""

    pid, replaced = os.getpid(), False

    def forked(self, process: proc.KnownProcess) -> bool:
        return process.pid not in self.left

    def __init__(self, *left: int) -> None:
        self.left = left


def remains(folder: Path, *left: int, gone_s: float = 60.0) -> Remains:
    groups = EpochGroups(folder, None)
    return Remains(folder / "control", folder, "i1", Adopting(*left), groups, gone_s=gone_s)  # type: ignore[arg-type]


@contextlib.contextmanager
def sleeping(**env: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"], env=env)
    until(lambda: Path(f"/proc/{process.pid}/cmdline").read_text().startswith("sleep"))
    yield process
    process.kill()
    process.wait()


async def test_what_cannot_be_killed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in state D, or another user's: an error instead of a start beside it; later it may go."""
    with sleeping(HOLDFAST_CONTROL=f"{tmp_path}/control/toy-e1-r0") as stuck:
        left = remains(tmp_path, stuck.pid, gone_s=0.01)
        with monkeypatch.context() as patch:
            patch.setattr(signal, "pidfd_send_signal", lambda *_: None)
            with pytest.raises(UnavailableError, match=rf"{stuck.pid} \(sleep, state \w\)"):
                await left.end("toy-e1", alone=lambda: True)
        left._gone_s = 60.0
        assert await left.end("toy-e1", alone=lambda: True) == [stuck.pid]
        assert await left.end("toy-e1", alone=lambda: True) == []


async def test_a_look_that_takes_long_leaves_time_to_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit counts from SIGKILL: a busy host may take as long to find what there is."""
    now = [0.0]
    monkeypatch.setattr(
        "holdfast.agent.ranks.remains.time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
    )
    with sleeping(HOLDFAST_CONTROL=f"{tmp_path}/control/toy-e1-r0") as late:
        left = remains(tmp_path, late.pid)
        look = left._left

        def slow(
            run: str, *, alone: Callable[[], bool], spared: Sequence[int] = ()
        ) -> list[proc.KnownProcess]:
            found = look(run, alone=alone, spared=spared)
            now[0] = 100.0
            return found

        monkeypatch.setattr(left, "_left", slow)
        assert await left.end("toy-e1", alone=lambda: True) == [late.pid]


@pytest.mark.parametrize(
    ("run", "alone", "ends"),
    [
        ("toy-e1", False, True),
        ("toy-e1", True, True),
        ("toy-e11", True, False),
        ("toy", True, False),
        ("", False, True),
    ],
)
async def test_only_the_run_that_is_meant_ends(tmp_path: Path, run: str, alone: bool, ends: bool) -> None:
    """Names that begin alike are others."""
    with sleeping(HOLDFAST_CONTROL=f"{tmp_path}/control/toy-e1-r0") as process:
        assert await remains(tmp_path, process.pid).end(run, alone=lambda: alone) == (
            [process.pid] if ends else []
        )


async def test_another_machines_leftovers_stay(tmp_path: Path) -> None:
    """Agents of one host differ by their machine's folder; this agent's own processes stay as well."""
    here, there = tmp_path / "m1", tmp_path / "m11"
    agent = remains(here)
    with (
        sleeping(HOLDFAST_AGENT=f"{here}:former") as left,
        sleeping(HOLDFAST_AGENT=f"{there}:former") as neighbours,
        sleeping(HOLDFAST_AGENT=f"{here}:i1") as own,
        sleeping(HOLDFAST_MACHINE_DIR=str(here)) as shell,
    ):
        await agent.clear()
        assert left.wait(60) == -signal.SIGKILL
        assert [p.poll() for p in (neighbours, own, shell)] == [None] * 3


async def test_nothing_starts_beside_what_is_left(tmp_path: Path) -> None:
    """An epoch that cannot be ended keeps the next one from starting, and is tried again by the next attempt."""
    tried: list[str] = []

    class Stuck:
        start = Start(
            job="toy", epoch=1, incarnation="i", script="s", code_version="0" * 12, ranks=(0,), world_size=1,
            rendezvous=NOWHERE,
        )  # fmt: skip

        async def stop(self, **_: object) -> list[int]:
            tried.append("stop")
            raise UnavailableError("1 (sleep, state D)")

    async def code(*_: object) -> Path:
        return tmp_path

    def make_run(start: Start) -> Run:
        raise AssertionError(f"epoch {start.epoch} was started")

    some: Any = SimpleNamespace(code=code)
    jobs = RunningJobs(
        forks=some,
        memory=some,
        supply=some,
        metrics=some,
        host="",
        make_run=make_run,
        events=some,
        on_exit=some,
        on_lost=some,
    )
    jobs.runs["toy"] = Stuck()  # type: ignore[assignment]
    for _ in range(2):
        with pytest.raises(UnavailableError, match="state D"):
            await jobs.start(Stuck.start.model_copy(update={"epoch": 2}))
    assert tried == ["stop", "stop"]


def test_a_job_beside_replicas_is_not_alone() -> None:
    """A process without a mark may be one that a replica started, of this job or of another."""
    some: Any = SimpleNamespace()
    jobs = RunningJobs(
        forks=some,
        memory=some,
        supply=some,
        metrics=some,
        host="",
        make_run=some,
        events=some,
        on_exit=some,
        on_lost=some,
    )
    assert jobs._alone("toy")()
    with jobs._starting():
        assert not jobs._alone("toy")()
    jobs.replicas_here = lambda: True
    assert not jobs._alone("toy")()


async def test_a_program_that_just_begins_is_not_taken_for_one_without_a_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the moment of an exec the kernel shows no environment: others' processes would be ended in it."""
    shows = iter([b"\0", b"\0"])
    environment = proc.environment
    with sleeping(HOLDFAST_CONTROL=f"{tmp_path}/control/toy-e1-r0") as process:
        monkeypatch.setattr(proc, "environment", lambda pid: next(shows, None) or environment(pid))
        monkeypatch.setattr(proc, "has_environment", lambda _: False)
        assert await remains(tmp_path, process.pid).end("toy-e2", alone=lambda: True) == []
        assert next(shows, None) is None, "control: it was looked at in that moment"
    with sleeping() as bare:
        monkeypatch.undo()
        assert proc.has_environment(bare.pid), "an empty one is one"
        assert await remains(tmp_path, bare.pid).end("toy-e2", alone=lambda: True) == [bare.pid]


async def test_a_rank_that_is_forked_just_now_for_another_job_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no mark yet, and the agent does not know it yet; that a start is under way is asked after the look."""
    forking = False
    with sleeping() as newborn:
        left = remains(tmp_path, newborn.pid)
        look = left._candidates

        def forked_meanwhile() -> Iterable[int]:
            nonlocal forking
            forking = True
            return look()

        with monkeypatch.context() as patch:
            patch.setattr(left, "_candidates", forked_meanwhile)
            assert await left.end("toy-e1", alone=lambda: not forking) == []
        assert await left.end("toy-e1", alone=lambda: True) == [newborn.pid], "control"
