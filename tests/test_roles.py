"""``holdfast.roles`` in a process: with the files of an agent, and without any."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from holdfast import roles
from holdfast.agent.roles.files import RoleFiles
from holdfast.models.roles import Member


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RoleFiles:
    """This process is rollout 3 of generation 2."""
    made = RoleFiles(tmp_path, "10.0.0.4")
    for name, value in made.environment("rl", "rollout", 3, 2).items():
        monkeypatch.setenv(name, value)
    return made


def member(index: int, address: str, role: str = "cache") -> Member:
    return Member(role=role, index=index, generation=1, address=address)


def test_a_process_knows_itself_and_announces_its_port(files: RoleFiles) -> None:
    """Under its generation: what an older one announced is of no use to it."""
    assert (roles.role(), roles.index(), roles.host()) == ("rollout", 3, "10.0.0.4")
    roles.announce(4001)
    assert files.address("rl", "rollout", 3, 2) == "10.0.0.4:4001"
    assert files.address("rl", "rollout", 3, 1) == ""
    files.withdraw("rl", "rollout", 3, 2)
    assert files.address("rl", "rollout", 3, 2) == ""
    with pytest.raises(ValueError, match="port = 0: expected 1 to 65535"):
        roles.announce(0)


def test_a_process_says_that_it_makes_progress(files: RoleFiles) -> None:
    assert files.alive_at("rl", "rollout", 3, 2) == 0
    roles.alive()
    first = files.alive_at("rl", "rollout", 3, 2)
    assert first > 0
    while files.alive_at("rl", "rollout", 3, 2) == first:  # as coarse as the file system's clock
        roles.alive()
    files.withdraw("rl", "rollout", 3, 2)
    assert files.alive_at("rl", "rollout", 3, 2) == 0


def test_members_are_those_of_one_role(files: RoleFiles) -> None:
    """As they are now."""
    assert roles.addresses("cache") == {}
    files.show("rl", [member(0, "a:1"), member(2, "b:1"), member(0, "c:1", role="trainer")])
    assert roles.addresses("cache") == {0: "a:1", 2: "b:1"}
    assert roles.wait_for("cache", 2, timeout_s=0) == {0: "a:1", 2: "b:1"}
    with pytest.raises(TimeoutError, match="role cache: 2 of 3 members"):
        roles.wait_for("cache", 3, timeout_s=0)
    files.forget("rl")
    assert roles.addresses("cache") == {}


def test_a_watch_yields_changes_only(files: RoleFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The present members first."""
    shown = iter([[member(0, "a:1")], [member(0, "a:1")], [member(0, "b:1")]])
    monkeypatch.setattr("time.sleep", lambda _: files.show("rl", next(shown)))
    found = list(itertools.islice(roles.watch("cache"), 3))
    assert found == [{}, {0: "a:1"}, {0: "b:1"}]


def test_without_an_agent_no_role_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And announcing does nothing, as under plain torchrun."""
    for name in [name for name in os.environ if name.startswith("HOLDFAST_ROLE")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", "5")
    roles.announce(4001)
    assert (roles.role(), roles.index(), roles.addresses("cache")) == ("trainer", 5, {})
    assert list(tmp_path.iterdir()) == []
