"""One real agent and scripts without torch."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from holdfast import secret
from holdfast.agent.ranks.rank_main import NICE
from holdfast.errors import (
    CheckpointError,
    SettingsError,
    StaleError,
    UnauthorizedError,
    UnknownError,
)
from holdfast.models.agent import Fence, Hold, PrepareCode, RankPhase, RankState, Replay
from holdfast.models.alert import AlertKind
from holdfast.models.checkpoint import RestoreOrder, ShardSource, Tier
from holdfast.storage.code import versions
from tests.agent.gateway import GIVEN_UP_S, FakeGateway, events, eventually, until
from tests.agent.scripts import SLEEP, STEPS, fence
from tests.agent.shards import write_shard
from tests.agent.site import AgentProcess, card

pytestmark = pytest.mark.e2e

READS_TICKET = """
import json, os, pathlib, time
ticket = pathlib.Path(json.loads(os.environ["HOLDFAST_RESTORE"])["ticket"])
while not ticket.exists():
    time.sleep(0.01)
print(ticket.read_text())
"""


async def test_ranks_run_as_under_torchrun(agent: AgentProcess, gateway: FakeGateway) -> None:
    """Environment, working directory, arguments and log are the script's; status 0 is reported."""
    agent.script(
        "env",
        "import json, os, sys, time\n"
        "from pathlib import Path\n"
        "while not Path(os.environ['HOLDFAST_MACHINE_DIR'], 'go').exists():\n"
        "    time.sleep(0.01)\n"
        "keys = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'EXTRA', 'HOLDFAST_MACHINE',"
        " 'HOLDFAST_MACHINE_DIR')\n"
        "print(json.dumps([os.environ[k] for k in keys] + sys.argv[1:] + [os.getcwd(), sys.path[0],"
        " os.nice(0), __name__]))\n"
        "import atexit; atexit.register(print, 'bye')\n",
    )
    async with agent.client as client:
        recorded = {"EXTRA": "e", "RANK": "7", "HOLDFAST_MACHINE": "m7"}  # the agent's own names win
        states = await client.start(agent.start("env", args=("--x", "1"), env=recorded))
    assert [(state.rank, state.phase) for state in states] == [
        (0, RankPhase.STARTING),
        (1, RankPhase.STARTING),
    ]
    (agent.folder / "go").touch()
    until(lambda: gateway.done("env") == {0, 1})
    first, bye = agent.log("env", 1).splitlines()
    code = str(agent.folder / "code" / "env" / agent.version("env"))
    assert json.loads(first) == [
        "1", "1", "2", "127.0.0.1", "e", agent.machine, str(agent.folder),
        "--x", "1", code, code, os.nice(0) + NICE, "__main__",
    ]  # fmt: skip
    assert bye == "bye"
    assert gateway.alerts(AlertKind.RANK_EXIT, "env") == []


async def test_a_script_that_is_a_link_imports_what_lies_beside_its_file(
    agent: AgentProcess, gateway: FakeGateway
) -> None:
    """As under ``python``; the script's name is the link's."""
    beside = {"real/script.py": "import sys, helper\nprint(sys.argv[0])\n", "real/helper.py": ""}
    agent.script("link", "", beside, links={"train.py": "real/script.py"})
    async with agent.client as client:
        await client.start(agent.start("link"))
    until(lambda: gateway.done("link") == {0, 1})
    assert agent.log("link").strip().endswith("/train.py")


async def test_a_killed_rank_is_reported_at_once(agent: AgentProcess, gateway: FakeGateway) -> None:
    """SIGKILL of a rank is an alert with its signal, while its sibling runs on."""
    agent.script("kill", "print('alive')\n" + SLEEP)
    async with agent.client as client:
        first, _ = await client.start(agent.start("kill"))
        until(lambda: "alive" in agent.log("kill"))
        os.kill(first.pid, signal.SIGKILL)
        (alert,) = until(lambda: gateway.alerts(AlertKind.RANK_EXIT, "kill"))
        assert (alert.rank, alert.epoch, alert.machine) == (0, 1, "m0")
        assert alert.evidence["signal"] == "SIGKILL"
        assert alert.evidence["log_tail"] == "alive\n"
        assert await client.fence(fence(agent, "kill")) == [1]
    assert len(gateway.alerts(AlertKind.RANK_EXIT, "kill")) == 1  # the fenced one raised none


async def test_sighup_ends_no_rank(agent: AgentProcess, gateway: FakeGateway) -> None:
    """As for other daemons, of which it has some read their settings again; ranks have its default."""
    agent.script("hup", "import signal\nprint(signal.getsignal(signal.SIGHUP) is signal.SIG_DFL)\n" + SLEEP)
    async with agent.client as client:
        await client.start(agent.start("hup"))
        until(lambda: "True" in agent.log("hup"))
        agent.process.send_signal(signal.SIGHUP)
        assert await client.fence(fence(agent, "hup")) == [0, 1]
    assert agent.process.poll() is None
    assert gateway.alerts(AlertKind.RANK_EXIT, "hup") == []


async def test_an_uncaught_exception_names_the_users_line(agent: AgentProcess, gateway: FakeGateway) -> None:
    """Traceback, type and the deepest frame in the job's code travel with the alert."""
    agent.script("bug", "import json\ndef work():\n    json.dumps({}, indent=object())\nwork()\n")
    async with agent.client as client:
        await client.start(agent.start("bug", ranks=(0,), world_size=1))
        (alert,) = until(lambda: gateway.alerts(AlertKind.RANK_EXIT, "bug"))
    found = alert.evidence
    assert (found["exit_code"], found["error_type"], found["cascade"]) == (1, "TypeError", False)
    assert found["user_frame"] == "train.py:3 in work"
    assert "runpy" not in found["traceback"]
    assert agent.log("bug").count("Traceback") == 1


async def test_a_syntax_error_is_the_users(agent: AgentProcess, gateway: FakeGateway) -> None:
    """A script that does not even compile is named with its line."""
    agent.script("syntax", "x = 1\ny = = 2\n")
    async with agent.client as client:
        await client.start(agent.start("syntax", ranks=(0,), world_size=1))
        (alert,) = until(lambda: gateway.alerts(AlertKind.RANK_EXIT, "syntax"))
    assert alert.evidence["user_frame"] == "train.py:2 in <module>"


async def test_fence_ends_everything_and_refuses_the_past(agent: AgentProcess) -> None:
    """Ranks, their children and a stopped one are gone when fence returns; the epoch cannot start again."""
    agent.script(
        "fence",
        "import os, subprocess, sys\n"
        "subprocess.Popen(['sleep', '600'])\n"
        "subprocess.Popen(['sleep', '601'], start_new_session=True)\n"
        "print('up')\n" + SLEEP,
    )
    async with agent.client as client:
        states = await client.start(agent.start("fence"))
        until(lambda: "up" in agent.log("fence", 0) and "up" in agent.log("fence", 1))
        family = [p for s in states for p in psutil.Process(s.pid).children(recursive=True)]
        assert len(family) == 4
        os.kill(states[1].pid, signal.SIGSTOP)
        assert await client.fence(fence(agent, "fence")) == [0, 1]
        assert not any(psutil.pid_exists(state.pid) for state in states)
        assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family)
        assert await client.fence(fence(agent, "fence")) == []
        with pytest.raises(StaleError, match="epochs up to 1 are fenced off"):
            await client.start(agent.start("fence"))
        assert (await client.state()).fences["fence"] == 1


async def test_start_may_be_repeated_and_newer_epochs_replace(agent: AgentProcess) -> None:
    """The same command forks nothing twice, not even at once; a newer epoch takes over; an older is refused."""
    agent.script("again", SLEEP)
    async with agent.client as client:
        same = agent.start("again")
        first, second = await asyncio.gather(client.start(same), client.start(same))
        assert [s.pid for s in first] == [s.pid for s in second]
        newer = await client.start(agent.start("again", epoch=2))
        assert not any(psutil.pid_exists(state.pid) for state in first)
        with pytest.raises(StaleError):
            await client.start(same)
        state = await client.state()
        (job,) = [job for job in state.jobs if job.job == "again"]
        assert (job.epoch, {s.pid for s in job.ranks}) == (2, {s.pid for s in newer})
        await client.fence(fence(agent, "again", 2))


async def test_steps_reach_the_gateway(agent: AgentProcess, gateway: FakeGateway) -> None:
    """First step at once, each step as a mark exactly once, rank states in heartbeats."""
    agent.script("steps", STEPS + "for n in range(1, 41): step(n); time.sleep(0.005)\ntime.sleep(600)\n")
    async with agent.client as client:
        await client.start(agent.start("steps"))

        def marks() -> list[int]:
            found: list[int] = []
            before = 0.0
            for beat in [each for each in list(gateway.heartbeats) if each.machine == agent.machine]:
                steps = [mark.step for job in beat.jobs if job.job == "steps" for mark in job.marks]
                # The one before was answered too late: its marks come again.
                if beat.at - before > GIVEN_UP_S:
                    found = [step for step in found if step not in steps]
                found, before = found + steps, beat.at
            return found

        until(lambda: 40 in marks())
        assert marks() == list(range(1, 41))
        assert [report.started[0].step for report in events(gateway, "steps")] == [1]

        async def settled() -> RankState | None:
            (job,) = [job for job in (await client.state()).jobs if job.job == "steps"]
            # It may still wait for its turn.
            return job.ranks[0] if job.ranks[0].process_state == "S" else None

        rank = await eventually(settled)
        assert rank is not None
        assert (rank.phase, rank.step) == (RankPhase.RUNNING, 40)
        await client.fence(fence(agent, "steps"))


async def test_a_loss_that_is_not_finite_alerts_once(agent: AgentProcess, gateway: FakeGateway) -> None:
    """Two ranks, many steps, one alert."""
    agent.script("nan", STEPS + "for n in (1, 2, 3): step(n, 'nan' if n > 1 else 1.0)\nsay('end')\n" + SLEEP)
    async with agent.client as client:
        await client.start(agent.start("nan"))
        until(lambda: gateway.alerts(AlertKind.NON_FINITE, "nan"))
        state = until(lambda: [j for b in gateway.heartbeats for j in b.jobs if j.job == "nan"][-1:])
        assert state
        await client.fence(fence(agent, "nan"))
    (alert,) = gateway.alerts(AlertKind.NON_FINITE, "nan")
    assert alert.evidence == {"step": 2, "metric": "loss", "value": "nan"}


async def test_hold_reaches_the_control_page(agent: AgentProcess) -> None:
    """Ranks read where to wait, and say that they do."""
    agent.script(
        "hold",
        STEPS + "while control.hold_at_step != 7: time.sleep(0.002)\nsay('held', step=7)\n"
        "while control.hold_at_step != -1: time.sleep(0.002)\nsay('released')\n" + SLEEP,
    )

    async with agent.client as client:
        await client.start(agent.start("hold"))

        async def paused(expected: bool) -> bool:
            (job,) = [job for job in (await client.state()).jobs if job.job == "hold"]
            return {rank.paused for rank in job.ranks} == {expected}

        for at_step, expected in ((7, True), (None, False)):
            hold = Hold(job="hold", epoch=1, incarnation=agent.incarnation, at_step=at_step)
            await client.hold(hold)
            await eventually(functools.partial(paused, expected))
        with pytest.raises(StaleError):
            await client.hold(hold.model_copy(update={"epoch": 9}))
        await client.fence(fence(agent, "hold"))


async def test_restore_from_memory_points_at_the_shard(agent: AgentProcess) -> None:
    """Each rank's ticket has its shard's path; later steps are forgotten; a missing shard refuses the start."""
    agent.script("mem", READS_TICKET)
    own, peer = agent.shm / "own" / "mem", agent.shm / "peer" / "mem"
    for step in (4, 5):
        write_shard(own, 0, step, job="mem")
    shard = write_shard(peer, 1, 4, job="mem")
    sources = tuple(ShardSource(rank=rank, machine="m0", tier=Tier.MEMORY) for rank in (0, 1))
    async with agent.client as client:
        missing = RestoreOrder(step=5, tier=Tier.MEMORY, sources=sources)
        with pytest.raises(CheckpointError, match="rank 1 at step 5"):
            await client.start(agent.start("mem", restore=missing))
        assert not [job for job in (await client.state()).jobs if job.job == "mem"], "no rank is left"
        order = RestoreOrder(step=4, tier=Tier.MEMORY, sources=sources, key="mem/checkpoints/step-4/")
        await client.start(agent.start("mem", restore=order))
        until(lambda: agent.log("mem", 1).endswith("}\n"))
        ticket = json.loads(agent.log("mem", 1).splitlines()[-1])
        assert (ticket["step"], ticket["tier"], ticket["path"]) == (4, "memory", str(shard))
        # A rank whose shard lacks something may turn to the step in S3.
        assert (ticket["key"], ticket["job"], ticket["alone"]) == (order.key, "mem", False)
        assert {s.step for s in (await client.state()).shards if s.job == "mem"} == {4}
        assert {s.rank for s in (await client.state(saved=("mem", 4))).shards} == {0, 1}
        assert (await client.state(saved=("mem", 5))).shards == ()
        await client.forget(fence(agent, "mem"))
        state = await client.state()
    assert not [s for s in state.shards if s.job == "mem"]
    assert not [job for job in state.jobs if job.job == "mem"]


async def test_only_an_epoch_that_ended_is_forgotten_and_its_fence_stays(agent: AgentProcess) -> None:
    """A gateway that slept meant an older epoch, or another incarnation; what it wakes up to runs on."""
    agent.script("kept", SLEEP)
    shard = write_shard(agent.shm / "own" / "kept", 0, 4, job="kept")
    async with agent.client as client:
        await client.start(agent.start("kept", epoch=3))
        with pytest.raises(StaleError, match="epoch 3 was here since epoch 2"):
            await client.forget(fence(agent, "kept", 2))
        with pytest.raises(StaleError, match="incarnation"):
            await client.forget(Fence(job="kept", epoch=3, incarnation="another"))
        # As gateways of former releases ask.
        by_name = await delete(agent, "/v1/jobs/kept")
        assert by_name.status_code == 409
        assert shard.exists()
        (run,) = [run for run in (await client.state()).jobs if run.job == "kept"]
        assert all(rank.phase is not RankPhase.EXITED for rank in run.ranks)
        await client.forget(fence(agent, "kept", 3))
        await client.forget(fence(agent, "kept", 3))
        assert not shard.exists()
        assert (await client.state()).fences["kept"] == 3
        with pytest.raises(StaleError, match="fenced off"):
            await client.start(agent.start("kept", epoch=3))
        with pytest.raises(StaleError, match="epoch 3 was here"):
            await client.forget(fence(agent, "kept", 1))
        refused = await delete(agent, "/v1/jobs/kept")
        assert (refused.status_code, "without the epoch" in refused.text) == (409, True)
        assert (await client.state()).fences["kept"] == 3


async def delete(agent: AgentProcess, path: str) -> httpx.Response:
    address = agent.gateway.registered[agent.machine].address
    header = secret.keys(secret.read(agent.home / "secret")).header
    async with httpx.AsyncClient() as http:
        return await http.delete(f"http://{address}{path}", headers={"Authorization": header})


async def test_replays_run_beside_and_in_silence(agent: AgentProcess, gateway: FakeGateway) -> None:
    """A replay's results are asked for; it raises no alert and is not in heartbeats."""
    agent.script(
        "rep",
        STEPS + "assert os.environ['HOLDFAST_REPLAY_STEPS'] == '3'\nif rank == 1: step(1, 'nan'); 1 / 0\n"
        "say('replayed', ok=True, detail='fine')\n",
    )
    start = agent.start("rep~h0", replay=Replay(group="h0", steps=3))
    async with agent.client as client:
        for _ in range(2):  # and again after a fence, as the next attempt of a playbook would
            await client.start(start)
            results = await eventually(functools.partial(client.replay_results, "rep~h0", 1))
            assert [(r.rank, r.ok, r.detail) for r in results] == [
                (0, True, "fine"),
                (1, False, "loss nan at step 1"),
            ]
            await client.fence(fence(agent, "rep~h0"))
        with pytest.raises(UnknownError):
            await client.replay_results("rep~h0", 1)
    assert events(gateway, "rep~h0") == []


async def test_stale_and_wrong_commands_are_refused(agent: AgentProcess) -> None:
    """Another incarnation's command, a wrong secret, malformed bodies: clear answers, counted."""
    async with agent.client as client:
        with pytest.raises(StaleError, match="incarnation 'old'"):
            await client.fence(Fence(job="x", epoch=1, incarnation="old"))
        with pytest.raises(StaleError):
            await client.prepare_code(PrepareCode(job="x", version="y", incarnation="old"))
        with pytest.raises(SettingsError, match=r"Hold\.job"):
            await client._call("POST", "/v1/hold", Replay(group="x", steps=1), type(None))
        with pytest.raises(SettingsError, match=r"Command\.job") as refused:
            await client._call("POST", "/v1/command", Replay(group="x" * 100_000, steps=1), type(None))
        assert len(str(refused.value)) < 1000, "a refusal does not carry the body back"
    address = card(agent)["address"]
    async with httpx.AsyncClient(base_url=f"http://{address}") as http:
        assert (await http.get("/healthz")).json()["machine"] == "m0"
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            answer = await http.get("/metrics", headers=headers)
            assert (answer.status_code, answer.json()["error"]) == (401, UnauthorizedError.__name__)
        good = {"Authorization": f"Bearer {(agent.home / 'secret').read_text()}"}
        assert "holdfast_unauthorized_total 2.0" in (await http.get("/metrics", headers=good)).text


async def test_a_source_that_is_gone_is_a_clear_error(agent: AgentProcess) -> None:
    """It is named and does not hang the start; no rank is left."""
    agent.script("gone", READS_TICKET)
    sources = tuple(
        ShardSource(rank=rank, machine="m9", tier=Tier.PEER, address="127.0.0.1:1") for rank in (0, 1)
    )
    order = RestoreOrder(step=1, tier=Tier.MEMORY, sources=sources)
    async with agent.client as client:
        with pytest.raises(CheckpointError, match=r"peer of m9\): data port 127\.0\.0\.1:1"):
            await client.start(agent.start("gone", restore=order))
        assert not [job for job in (await client.state()).jobs if job.job == "gone"]


async def test_machine_fault_alerts_carry_the_running_job(agent: AgentProcess, gateway: FakeGateway) -> None:
    """An Xid in the kernel log reaches the gateway with job, epoch and incarnation."""
    agent.script("xid", SLEEP)
    async with agent.client as client:
        await client.start(agent.start("xid", epoch=4))
        with (agent.folder / "kernel.log").open("a") as log:
            log.write("[ 100.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n")
        (alert,) = until(lambda: gateway.alerts(AlertKind.XID, "xid"))
        assert (alert.epoch, alert.machine, alert.incarnation) == (4, "m0", agent.incarnation)
        await client.fence(fence(agent, "xid", 4))


def test_the_agent_takes_everything_with_it(home: Path, gateway: FakeGateway) -> None:
    """SIGKILL of an agent leaves no process of its machine; the next agent still has the shards."""
    first = AgentProcess(home, "m7", gateway, HOLDFAST_PRELOAD="json").ready()
    first.script("toy", "print('up')\n" + SLEEP)

    async def start() -> None:
        async with first.client as client:
            await client.start(first.start("toy"))

    asyncio.run(start())
    until(lambda: "up" in first.log("toy", 1))
    write_shard(first.shm / "own" / "toy", 0, 9)
    family = first.family()
    assert len(family) >= 4
    before = first.incarnation
    first.stop(signal.SIGKILL)
    until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family), 60)
    second = AgentProcess(home, "m7", gateway, HOLDFAST_PRELOAD="json").ready()
    try:

        async def look() -> list[int]:
            async with second.client as client:
                return [shard.step for shard in (await client.state()).shards]

        assert asyncio.run(look()) == [9]
        assert second.incarnation != before
    finally:
        assert second.stop() == 0


def test_a_replaced_agent_leaves(home: Path, gateway: FakeGateway) -> None:
    """409 to its heartbeat: the agent kills its ranks and exits with status 3."""
    agent = AgentProcess(home, "m8", gateway, HOLDFAST_PRELOAD="json").ready()
    agent.script("toy", SLEEP)

    async def start() -> list[int]:
        async with agent.client as client:
            return [state.pid for state in await client.start(agent.start("toy"))]

    pids = asyncio.run(start())
    gateway.stale.add("m8")
    assert agent.process.wait(60) == 3
    assert not any(psutil.pid_exists(pid) for pid in pids)
    agent.stop()


@pytest.mark.parametrize(
    ("machine", "prepare", "message"),
    [
        ("bad/name", "", "--machine 'bad/name'"),
        ("m9", "chmod", "chmod 600"),
        ("m9", "nohome", "no such folder"),
    ],
)
def test_wrong_input_is_one_line(
    tmp_path: Path, gateway: FakeGateway, machine: str, prepare: str, message: str
) -> None:
    """No traceback, non-zero status."""
    folder = tmp_path / "home"
    if prepare != "nohome":
        folder.mkdir()
        (folder / "secret").write_text("x")
        (folder / "secret").chmod(0o644 if prepare == "chmod" else 0o600)

    done = subprocess.run(
        [sys.executable, "-m", "holdfast.agent", "--machine", machine, "--home", str(folder)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


async def test_code_comes_from_a_neighbour_when_there_is_no_s3(
    agent: AgentProcess, home: Path, gateway: FakeGateway, tmp_path: Path
) -> None:
    """A machine that joined late asks the others; what it got, it can give on."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    version, archive = versions.pack(tmp_path)
    versions.place(archive, version, agent.folder / "code" / "shared" / version)
    address = card(agent)["address"]
    late = AgentProcess(
        home, "m9", gateway, HOLDFAST_PRELOAD="json", HOLDFAST_S3_ENDPOINT="http://127.0.0.1:1"
    )
    try:
        late.ready()
        order = PrepareCode(
            job="shared", version=version, incarnation=late.incarnation, neighbours=("127.0.0.1:1", address)
        )
        async with late.client as client:
            before = await client.settle(fence(late, "shared"))
            await client.prepare_code(order)
            after = await client.settle(fence(late, "shared"))
            assert (before.code, after.code) == ((), (version,))
            assert after.state.fences == {"shared": 1}
            assert await client.code("shared", version) == archive
            with pytest.raises(UnknownError, match="not on this machine"):
                await client.code("shared", "0" * 12)
        assert (late.folder / "code" / "shared" / version / "train.py").read_text() == "print('hello')\n"
    finally:
        late.stop()
