"""A script finds ``multiprocessing`` as under ``python SCRIPT``, whoever forked its process."""

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
told = {
    "product": queue.get(timeout=60),
    "default": multiprocessing.get_start_method(),
    "name": multiprocessing.current_process().name,
    "child": multiprocessing.parent_process() is not None,
}

note = Path(sys.argv[1])
note.with_suffix(".new").write_text(json.dumps(told))
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
