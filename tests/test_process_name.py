from __future__ import annotations

import os
import subprocess
import sys

from holdfast import process_name

HOST = os.uname().nodename


def test_a_process_lives_until_it_ends() -> None:
    """Also one that its parent has not asked for its status."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    name = process_name.name_of(child.pid)
    assert name.startswith(f"{HOST}@")
    assert name.endswith(f":{child.pid}")
    assert process_name.lives(name) is True
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_name.lives(name) is False
    child.wait()
    assert process_name.lives(name) is False


def test_another_process_with_its_pid_is_not_it() -> None:
    """Neither one that started later, nor one of another boot under the same host name."""
    name = process_name.name_of(os.getpid())
    boot, _, started = name.removeprefix(f"{HOST}@").rpartition(":")[0].partition(".")
    assert process_name.lives(f"{HOST}@{boot}.{int(started) + 1}:{os.getpid()}") is False
    assert process_name.lives(f"{HOST}@00000000.{started}:{os.getpid()}") is False


def test_names_of_older_releases_and_of_other_hosts() -> None:
    """A host and a pid; nothing is known of what another host runs."""
    assert process_name.lives(f"{HOST}:{os.getpid()}") is True
    assert process_name.lives(str(os.getpid())) is True
    assert process_name.lives(f"not-{HOST}@ab.1:{os.getpid()}") is None
    assert process_name.lives(f"not-{HOST}:{os.getpid()}") is None
    assert process_name.lives(None) is None
