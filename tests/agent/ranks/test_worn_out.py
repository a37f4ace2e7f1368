"""Kept processes that are replaced: too old, or too late for their next epoch."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.ranks import run, survivors
from holdfast.models.agent import Rendezvous, Start


@pytest.mark.parametrize(("files", "old"), [(10, False), (60, True)])
def test_a_process_with_few_files_left_to_open_is_not_kept(files: int, old: bool) -> None:
    """Each epoch of a kept process leaves some open; at its limit no connection could be made."""
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\n"
        f"held = [open('/dev/null') for _ in range({files})]\n"
        "print('open', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"open\n"
        assert ("of at most 100 files" in survivors.worn_out(process.pid)) is old
        process.kill()
    assert not survivors.worn_out(process.pid)


@pytest.mark.parametrize(
    ("when", "replaced", "ended", "reported"),
    [
        ("never", True, True, False),
        ("while others were replaced", False, False, False),
        ("as it is ended", False, True, True),
    ],
)
async def test_a_late_process_that_joins_after_all_is_not_replaced(  # noqa: PLR0917
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, when: str, replaced: bool, ended: bool, reported: bool
) -> None:
    """Other ranks may have met it already: they would wait for it, and a new process for them."""
    start = Start(
        job="toy",
        epoch=2,
        incarnation="i1",
        script="train.py",
        code_version="v1",
        ranks=(0,),
        world_size=1,
        rendezvous=Rendezvous(host="127.0.0.1", port=1),
    )
    memory: Any = SimpleNamespace(root=tmp_path, own=lambda job: tmp_path / job)
    made = run.Run(start, "m1", tmp_path, memory)
    row = SimpleNamespace(spoke=False, joined=False)
    gone = asyncio.get_running_loop().create_future()
    watched = list[bool]()
    process: Any = SimpleNamespace(rank=0, gone=gone, exit_code=None, watch=lambda _: watched.append(True))
    board: Any = SimpleNamespace(rows={0: row}, drain=lambda: None)
    row.spoke = when == "while others were replaced"

    async def stop(_: object) -> list[int]:
        row.spoke = when == "as it is ended"
        gone.set_result(-9)
        return [0]

    exits = list[Any]()
    monkeypatch.setattr(run, "stop", stop)
    made._on_exit = lambda _, each: exits.append(each)
    assert await made._is_given_up(process, board) is replaced
    assert gone.done() is ended
    assert bool(watched) is (not replaced and not ended)
    assert bool(exits) is reported
    assert (0 in made.why_new) is replaced
