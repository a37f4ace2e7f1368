"""Kept processes are replaced before they are full of what their epochs left."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.agent.ranks import survivors


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
