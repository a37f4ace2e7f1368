"""Where epochs may have control groups, and their counters: on copies of real hosts' files, and by the kernel."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.agent.ranks.epoch_groups import EpochGroups, parent_of_groups
from tests.agent.gateway import until

V2 = "35 25 0:30 / {place} rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
HOSTS = {
    # name: (mountinfo, cgroup, where groups may be made: below the mount)
    "container-with-its-own-root": (V2, "0::/\n", "."),
    "hybrid": (V2, "12:pids:/user.slice\n1:name=systemd:/user.slice/s1\n0::/\n", "."),
    "login-of-systemd": (V2, "0::/user.slice/user-1000.slice/session-3.scope\n", None),
    "service-of-systemd": (V2, "0::/system.slice/holdfast-agent.service\n", None),
    "version-1-only": (
        "33 25 0:28 / {place} rw,relatime - cgroup cgroup rw,memory\n",
        "4:memory:/docker/1f\n1:name=systemd:/docker/1f\n",
        None,
    ),
    "part-of-a-hierarchy": (
        V2.replace(" / {place}", " /kubepods/pod1/c1 {place}"),
        "0::/kubepods/pod1/c1\n",
        None,
    ),
    "no-groups": ("", "", None),
}
"""As the kernel of such a host shows ``/proc/self/mountinfo`` and ``/proc/self/cgroup``."""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    made = tmp_path / "proc"
    made.mkdir()
    return made


@pytest.mark.parametrize("host", HOSTS)
def test_groups_are_made_only_where_no_one_else_keeps_order(tmp_path: Path, proc: Path, host: str) -> None:
    """At the root of what a process sees, not within systemd's or another's tree."""
    mounts, cgroup, below = HOSTS[host]
    (proc / "mountinfo").write_text(mounts.format(place=tmp_path))
    (proc / "cgroup").write_text(cgroup)
    assert parent_of_groups({}, proc) == (None if below is None else tmp_path / below)
    assert parent_of_groups({"SLURM_JOB_ID": "7"}, proc) is None, "Slurm ends what is in its own group"


def test_a_delegated_unit_may_have_groups(
    tmp_path: Path, proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd marks it so (``Delegate=yes``)."""
    (proc / "mountinfo").write_text(V2.format(place=tmp_path))
    (proc / "cgroup").write_text("0::/system.slice/holdfast-agent.service\n")
    delegated = ("holdfast-agent.service", "user.delegate")
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"1" if (path.name, name) == delegated else b"0")
    assert parent_of_groups({}, proc) == tmp_path / "system.slice/holdfast-agent.service"


def test_nothing_is_made_where_there_is_no_parent(tmp_path: Path) -> None:
    """Marks do then."""
    groups = EpochGroups(tmp_path, None)
    assert (groups.open("toy-e1"), groups.members("toy-e1"), groups.members()) == ("", [], [])
    groups.close()


def test_a_folder_that_is_no_group_is_not_joined(tmp_path: Path) -> None:
    """A parent that is not the kernel's, or not ours to write to."""
    groups = EpochGroups(tmp_path, tmp_path)
    assert groups.open("toy-e1") == ""
    groups.close("toy-e1")
    assert list(tmp_path.iterdir()) == []


def test_what_killed_agents_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """Empty and not made a moment ago, of whatever machine; what is not ours stays."""
    for name, old in (("holdfast-a-toy-e1", True), ("holdfast-b-toy-e1", False), ("other", True)):
        (tmp_path / name).mkdir()
        if old:
            os.utime(tmp_path / name, (0, 0))
    (tmp_path / "holdfast-c-toy-e1" / "inside").mkdir(parents=True)
    os.utime(tmp_path / "holdfast-c-toy-e1", (0, 0))
    EpochGroups(tmp_path / "m1", tmp_path).close_abandoned()
    assert {each.name for each in tmp_path.iterdir()} == {"holdfast-b-toy-e1", "holdfast-c-toy-e1", "other"}


@pytest.mark.skipif(parent_of_groups(os.environ) is None, reason="no control groups to be had here")
def test_all_that_join_and_what_they_start_are_reported(tmp_path: Path) -> None:
    """By the kernel, of one run and of all of this machine; another machine's are others."""
    groups, others = (EpochGroups(tmp_path / name, parent_of_groups(os.environ)) for name in ("m1", "m2"))
    joins = (groups.open("toy-e1"), others.open("toy-e1"))
    if not all(joins):
        pytest.skip("the kernel forbids it")
    started = [
        subprocess.Popen(["sh", "-c", f"echo 0 > {file}; setsid sleep 600 & echo; wait"], stdout=-1)
        for file in joins
    ]
    try:
        for each in started:
            assert each.stdout
            each.stdout.readline()
        mine = groups.members("toy-e1")
        assert len(mine) == 2
        assert started[0].pid in mine
        assert set(groups.members()) == set(mine)
        assert not set(mine) & set(others.members())
        groups.close()
        assert groups.members("toy-e1") == mine, "a group that is not empty stays"
    finally:
        for each in started:
            subprocess.run(["pkill", "-KILL", "-P", str(each.pid)], check=False)
            each.kill()
            each.wait()
        until(lambda: [each.close() for each in (groups, others)] and not others._folders(""))
    assert groups._folders("") == []
