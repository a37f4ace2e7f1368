"""A script finds ``multiprocessing`` as under ``python SCRIPT``, however its process was forked."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.models.alert import AlertKind
from tests.agent.gateway import until
from tests.agent.scripts import SLEEP, fence
from tests.agent.site import AgentProcess

UNGUARDED = """
import json, multiprocessing, sys
from pathlib import Path
queue = multiprocessing.Queue()
multiplied = multiprocessing.Process(target=lambda: queue.put(6 * 7), daemon=True)
multiplied.start()
facts = {
    "product": queue.get(timeout=60),
    "default": multiprocessing.get_start_method(),
    "name": multiprocessing.current_process().name,
    "child": multiprocessing.parent_process() is not None,
}

note = Path(sys.argv[1])
note.with_suffix(".new").write_text(json.dumps(facts))
note.with_suffix(".new").rename(note)
"""


@pytest.mark.e2e
@pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="a program's own default is forkserver: the script needs a guard"
)
async def test_a_script_without_a_guard_starts_processes(agent: AgentProcess, tmp_path: Path) -> None:
    """Not only functions that pickle; and the first choice of a start method is the script's."""
    agent.script("unguarded", UNGUARDED + SLEEP)
    async with agent.client as client:
        note = tmp_path / "rank"
        await client.start(agent.start("unguarded", ranks=(0,), world_size=1, args=(str(note),)))
        until(note.exists, 60, f"the script to end: {agent.log('unguarded')}")
        await client.fence(fence(agent, "unguarded"))
    (tmp_path / "train.py").write_text(UNGUARDED)
    plain = [sys.executable, tmp_path / "train.py", tmp_path / "plain"]
    await asyncio.to_thread(subprocess.run, [*plain], check=True, timeout=60)
    assert json.loads(note.read_text()) == json.loads((tmp_path / "plain").read_text())


FORKS_ONE_THAT_FAILS = """
import os, signal
if os.fork() == 0:
    raise TypeError("of the child")
os.wait()
print("went on", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.e2e
async def test_last_words_are_those_of_the_rank_itself(agent: AgentProcess) -> None:
    """A process that the script forked, and whose failure it handled, does not say why the rank ended later."""
    agent.script("forksone", FORKS_ONE_THAT_FAILS)
    async with agent.client as client:
        await client.start(agent.start("forksone", ranks=(0,), world_size=1))
    [found] = until(lambda: agent.gateway.alerts(AlertKind.RANK_EXIT, "forksone"), 60, "the rank's end")
    assert "of the child" in agent.log("forksone")
    assert found.evidence["signal"] == "SIGKILL"
    assert "failed_at" not in found.evidence, "its child's last words"
    assert not found.evidence["user_frame"]


OUTLIVES_ITS_MAIN_PART = """
import atexit, pickle, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

class Kept:
    pass

def train():
    time.sleep(0.5)  # by then the main part has ended; where it has not, this only tests less
    threading._register_atexit(print)  # as the Session's saves do
    ThreadPoolExecutor(1).submit(abs, -1).result()  # as restores do
    pickle.dumps(Kept())
    print("trained", flush=True)

def print_error(kind, error, trace):
    print("hook", kind.__name__, trace.tb_frame.f_code.co_name, flush=True)

sys.excepthook = print_error
atexit.register(print, "exit function", flush=True)
ThreadPoolExecutor(1).submit(abs, -1)
threading.Thread(target=train).start()
sys.argv.clear()
"""


@pytest.mark.e2e
@pytest.mark.parametrize(
    "start",
    [
        "threading.Thread(target=train).start()",
        "ThreadPoolExecutor(1).submit(train)",
        "kept = ThreadPoolExecutor(1); kept.submit(train)",
    ],
)
async def test_a_script_may_end_before_its_threads(agent: AgentProcess, start: str) -> None:
    """They find Python as it was while they run; then exit functions are called, whatever became of ``sys.argv``."""
    agent.script("outlives", OUTLIVES_ITS_MAIN_PART.replace("threading.Thread(target=train).start()", start))
    async with agent.client as client:
        await client.start(agent.start("outlives", ranks=(0,), world_size=1))
        until(lambda: agent.gateway.done("outlives") == {0}, 60, f"the end: {agent.log('outlives')}")
    assert agent.log("outlives").split("\n")[:2] == ["trained", "exit function"]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("last", "lines"),
    [
        ('raise KeyError("gone")', ["hook KeyError <module>", "exit function"]),
        (
            'print_error = None\nsys.excepthook = lambda *_: print_error()\nraise KeyError("gone")',
            ["KeyError: 'gone'", "TypeError"],
        ),
    ],
)
async def test_the_scripts_hook_reports_its_exception(
    agent: AgentProcess, last: str, lines: list[str]
) -> None:
    """The alert is as ever, and a hook that fails hides nothing."""
    job = "failing-hook" if "TypeError" in lines else "hook"
    agent.script(job, OUTLIVES_ITS_MAIN_PART.replace("time.sleep(0.5)", "threading.Event().wait()") + last)
    async with agent.client as client:
        await client.start(agent.start(job, ranks=(0,), world_size=1))
        [found] = until(lambda: agent.gateway.alerts(AlertKind.RANK_EXIT, job), 60, "the rank's end")
    assert found.evidence["error_type"] == "KeyError"
    assert found.evidence["user_frame"].endswith("in <module>")
    log = agent.log(job)
    assert sorted(lines, key=log.index) == lines
    assert "trained" not in log, "nothing waits for the threads of what has failed"


@pytest.mark.e2e
async def test_a_script_says_why_it_exits(agent: AgentProcess) -> None:
    """The argument of ``sys.exit`` is in the alert, and in its log as under ``python``."""
    agent.script("says", 'import sys\nsys.exit("no data at /data")\n')
    async with agent.client as client:
        await client.start(agent.start("says", ranks=(0,), world_size=1))
        [found] = until(lambda: agent.gateway.alerts(AlertKind.RANK_EXIT, "says"), 60, "the rank's end")
    assert (found.evidence["exit_code"], found.evidence["error_type"]) == (1, "SystemExit")
    assert found.evidence["message"] == "no data at /data"
    assert agent.log("says").rstrip().endswith("no data at /data")


USES_ITS_OWN = """
import statistics, html.own, holdfast, torch
print(statistics.MINE, html.own.MINE, bool(holdfast.Session and torch.ones), flush=True)
"""


@pytest.mark.e2e
async def test_modules_beside_the_script_come_first(agent: AgentProcess) -> None:
    """Although the agent has loaded others of their names in advance; but not in place of the Session's, or torch."""
    names = ("statistics.py", "html/__init__.py", "html/own.py", "holdfast.py")
    agent.script("shadows", USES_ITS_OWN, dict.fromkeys(names, "MINE = 1\n"))
    async with agent.client as client:
        await client.start(agent.start("shadows", ranks=(0,), world_size=1))
        until(
            lambda: (
                agent.gateway.done("shadows") == {0} or agent.gateway.alerts(AlertKind.RANK_EXIT, "shadows")
            ),
            60,
        )
    assert agent.log("shadows") == "1 1 True\n"
