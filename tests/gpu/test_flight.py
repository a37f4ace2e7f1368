"""NCCL's records are read as Gloo's are."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

from holdfast.agent.diagnostics import flight, flight_files
from holdfast.agent.ranks import flight_thread
from tests.gpu.saving import report
from tests.session.harness import REPOSITORY

COLLECTIVES = 5


def test_a_recording_of_nccl_is_read(tmp_path: Path) -> None:
    """With the settings that ranks get: by the rank's own thread when asked, and by the watchdog's file."""
    folder = tmp_path / "flight"
    folder.mkdir()
    log = tmp_path / "log"
    env = os.environ | flight_files.environment(folder, {})
    rank = subprocess.Popen(
        [sys.executable, "-m", "tests.gpu.scripts.collectives", str(COLLECTIVES)],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log.open("wb"),
        cwd=REPOSITORY,
    )
    try:
        assert rank.stdout is not None
        answer = rank.stdout.readline().decode().strip()
        assert answer == "done", log.read_text()
        asked = asyncio.run(flight.collect(folder, {0: rank.pid}, 10.0))
        assert rank.poll() is None, log.read_text()
        own = folder / f"0{flight_thread.SUFFIX}"
        keep(own, "flight-asked.json")
        assert rank.stdin is not None
        rank.stdin.write(b"dump\n")
        rank.stdin.flush()
        raw = rank.stdout.readline().decode().strip()
        keep(Path(raw), "flight-nccl.pickle")
        recording = flight.load(Path(raw).read_bytes())
    finally:
        rank.kill()
        rank.communicate(timeout=30)
    found = [each for each in asked if each.backend == "nccl" and each.enqueued > 0]
    report(
        "flight", {"asked": [each.model_dump(mode="json") for each in asked], "version": recording["version"]}
    )
    assert found, asked
    assert (found[0].enqueued, found[0].completed, found[0].ranks) == (COLLECTIVES, COLLECTIVES, (0,))
    assert "all_reduce" in found[0].operation
    assert len(recording["entries"]) == COLLECTIVES


def keep(path: Path, name: str) -> None:
    """Keep a file as material."""
    if out := os.environ.get("HOLDFAST_GPU_OUT"):
        Path(out).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, Path(out) / name)
