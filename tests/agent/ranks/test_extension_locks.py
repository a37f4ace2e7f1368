"""Locks of torch's extensions are gone with the processes that left them, and no others are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.agent.ranks import extension_locks

BUILDS = """
import sys, time
from torch.utils.file_baton import FileBaton
baton = FileBaton(sys.argv[1])
assert baton.try_acquire()
print("builds", flush=True)
time.sleep(600)
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """Where torch puts it, in a folder that the job names."""
    path = tmp_path / "ext" / "cpu_adam" / "lock"
    path.parent.mkdir(parents=True)
    return path


def test_the_lock_of_a_killed_build_is_removed_and_of_a_living_one_is_not(lock: Path) -> None:
    """Made by torch's own class, in a process of its own."""
    env, since = {"TORCH_EXTENSIONS_DIR": str(lock.parents[1])}, time.time() - 1
    with subprocess.Popen([sys.executable, "-c", BUILDS, str(lock)], stdout=subprocess.PIPE) as builder:
        assert builder.stdout
        assert builder.stdout.readline() == b"builds\n"
        assert extension_locks.remove(env, since) == []
        builder.send_signal(signal.SIGKILL)
        builder.wait()
        assert lock.exists()
        assert extension_locks.remove(env, since) == [lock]
    assert not lock.exists()


def test_older_locks_and_those_on_shared_file_systems_stay(
    lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job's, or one that a process of another machine may hold."""
    env = {"TORCH_EXTENSIONS_DIR": str(lock.parents[1])}
    lock.touch()
    os.utime(lock, (1.0, 1.0))
    assert extension_locks.remove(env, 100.0) == []
    kinds = {str(lock.parents[1]): "nfs4"}
    monkeypatch.setattr(extension_locks, "type_of", lambda path: kinds.get(path, "ext4"))
    assert extension_locks.remove(env, 0.0) == []
    kinds.clear()
    assert extension_locks.remove(env, 0.0) == [lock]


def test_a_shared_file_system_is_not_looked_at(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server may be away, and a look would block. The first lock shows where a link leads."""

    def stuck(*_: object) -> list[Path]:
        raise AssertionError("it was looked at")

    shared = lock.parents[1]
    monkeypatch.setattr(
        extension_locks, "type_of", lambda path: "nfs4" if path.startswith(str(shared)) else "ext4"
    )
    lock.touch()
    link = shared.with_name("linked")
    link.symlink_to(shared)
    assert extension_locks.remove({"TORCH_EXTENSIONS_DIR": str(link)}, 0.0) == []
    assert lock.exists()
    monkeypatch.setattr(Path, "glob", stuck)
    assert extension_locks.remove({"TORCH_EXTENSIONS_DIR": str(shared)}, 0.0) == []


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({"TORCH_EXTENSIONS_DIR": "/a"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/torch_extensions"),
        ({"HOME": "/c"}, "/c/.cache/torch_extensions"),
    ],
)
def test_folder_is_the_one_that_torch_takes(
    env: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the variables of its environment."""
    from torch.utils import cpp_extension  # noqa: PLC0415

    for name in ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert str(extension_locks.root(os.environ)) == folder
    if "TORCH_EXTENSIONS_DIR" not in env:
        assert cpp_extension.get_default_build_root() == folder
