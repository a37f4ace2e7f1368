"""Temporary folders: of each epoch, gone with it; of the agent, gone with it, or with the next one."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path

import pytest

from holdfast.agent.ranks.scratch import Scratch, own
from tests.agent.gateway import FakeGateway, until
from tests.agent.scripts import SLEEP, fence
from tests.agent.site import AgentProcess

KEEPS = """
import json, multiprocessing, multiprocessing.util, os, tempfile
open(os.path.join(tempfile.gettempdir(), "left"), "w").close()
print(json.dumps([tempfile.gettempdir(), multiprocessing.util.get_temp_dir(), os.environ["TORCHINDUCTOR_CACHE_DIR"]]))
"""


@pytest.mark.e2e
async def test_what_an_epoch_and_an_agent_leave_in_temporary_folders_is_removed(
    home: Path, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the fence, by the agent's end, and by the next agent after SIGKILL; the host's own folder is not touched."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # torch sets it where it compiles
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as shared:
        theirs = Path(shared) / "of another user"
        theirs.touch()

        def agent() -> AgentProcess:
            started = AgentProcess(home, "m5", gateway, HOLDFAST_PRELOAD="json", TMPDIR=shared).ready()
            started.script("tmp", KEEPS + SLEEP)
            return started

        async def start(machine: AgentProcess, epoch: int) -> Path:
            async with machine.client as client:
                await client.start(machine.start("tmp", epoch, ranks=(0,), world_size=1))
            until(lambda: machine.log("tmp", 0, epoch).endswith("]\n"))
            folder, of_processes, cache = json.loads(machine.log("tmp", 0, epoch))
            assert of_processes.startswith(f"{folder}/pymp-")
            assert Path(folder).parent == Path(cache).parent == Path(shared)
            assert (Path(folder) / "left").exists()
            return Path(folder)

        first = agent()
        fenced = await start(first, 1)
        async with first.client as client:
            await client.fence(fence(first, "tmp"))
        assert not fenced.exists()
        killed = await start(first, 2)
        first.stop(signal.SIGKILL)
        assert killed.exists(), "control: no process was there to remove it"
        second = agent()
        assert not killed.exists()
        await start(second, 3)
        assert second.stop() == 0
        assert list(Path(shared).iterdir()) == [theirs]


def test_a_job_that_names_its_folder_has_its_own_in_there(tmp_path: Path) -> None:
    """So that what is large goes where the job wants it."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as wanted:
        scratch = Scratch(tmp_path / "links", "/nowhere")
        env = scratch.open("toy-e1", {"TMPDIR": wanted, "TORCHINDUCTOR_CACHE_DIR": "/cache"})
        assert Path(env["TMPDIR"]).parent == Path(wanted)
        assert env["TORCHINDUCTOR_CACHE_DIR"] == "/cache"
        scratch.remove("toy-e1")
        scratch.remove("toy-e1")
        assert os.listdir(wanted) == os.listdir(tmp_path / "links") == []


def test_a_process_that_was_an_agent_has_its_own_folder_again(tmp_path: Path) -> None:
    """A process that it starts later, such as a browser, would fail without the folder."""
    before, known = tempfile.gettempdir(), dict(os.environ)
    with own(tmp_path / "links"):
        assert tempfile.gettempdir() == os.environ["TMPDIR"] != before
    assert tempfile.gettempdir() == before
    assert dict(os.environ) == known


@pytest.mark.parametrize("base", ["/nowhere", "/tmp/" + "long" * 15])
def test_where_none_can_be_made_ranks_have_what_they_would_have(tmp_path: Path, base: str) -> None:
    """A folder that is missing, or so long that sockets below it would not work."""
    assert Scratch(tmp_path / "links", base).open("toy-e1", {}) == {"TMPDIR": base}
