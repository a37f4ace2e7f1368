"""Folders and files that are this user's alone: made so, closed, or refused with the owner's name."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import private
from holdfast.agent import wire
from holdfast.agent.__main__ import main as agent
from holdfast.deployments.local import bringup, control
from holdfast.drivers.local import LocalDriver
from holdfast.errors import CheckpointError, SettingsError
from holdfast.paths import shm_dir, shm_root
from holdfast.settings import Settings
from holdfast.storage.checkpoints.save import slot_files
from holdfast.storage.ledger import Ledger
from tests.e2e.waiting import free_ports

OTHER_USER = 65534
OPENERS: dict[str, Callable[[Path], object]] = {
    "control": wire.Control,
    "shard": lambda place: slot_files.create(place, 8192),
}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def as_another_user(command: str, *arguments: object) -> None:
    """Run a command as another user of this machine."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    subprocess.run(
        ["/bin/sh", "-c", command, "sh", *map(str, arguments)], user=OTHER_USER, check=True, timeout=60
    )


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder as /tmp and /dev/shm are."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    for above in tmp_path.parents:
        if above.name.startswith(("pytest-", "popen-")):
            above.chmod(0o711)
    tmp_path.chmod(0o711)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / ".holdfast"


@pytest.mark.parametrize("how", ["mkdir -m 777", "mkdir -m 700", "touch", "ln -s /tmp"])
def test_what_another_user_made_first_is_refused(shared: Path, how: str) -> None:
    """The refusal names the path, who owns it, and who should."""
    place = shared / "holdfast-1"
    as_another_user(f'{how} "$1"', place)
    with pytest.raises(
        SettingsError, match=f"{place}: this belongs to user nobody .*expected a folder of user root"
    ):
        private.folder(place)


def test_a_folder_is_made_for_this_user_alone(tmp_path: Path) -> None:
    """Whatever the umask is; and again it changes nothing."""
    before = os.umask(0)
    try:
        assert mode(private.folder(tmp_path / "one" / "two")) == 0o700
    finally:
        os.umask(before)
    assert mode(private.folder(tmp_path / "one" / "two")) == 0o700


def test_an_own_folder_that_others_could_read_is_closed(tmp_path: Path) -> None:
    """A former release left them as the umask made them."""
    (tmp_path / "old").mkdir(mode=0o755)
    assert mode(private.folder(tmp_path / "old")) == 0o700


def test_an_own_folder_that_every_user_could_write_to_is_refused(tmp_path: Path) -> None:
    """The files in it may be another user's."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(SettingsError, match=r"every user may write to this folder.*expected mode 0700"):
        private.folder(tmp_path / "open")


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Neither to folders nor to files, nor for what would be made."""
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(SettingsError, match="symbolic link"):
        private.folder(tmp_path / "link")
    (tmp_path / "dangling").symlink_to(tmp_path / "made")
    with pytest.raises(SettingsError, match="symbolic link"):
        private.opened(tmp_path / "dangling", os.O_RDWR | os.O_CREAT)
    assert not (tmp_path / "made").exists()


def test_a_volume_that_root_mounted_may_be_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But shared memory that root made is not ours."""
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    if (tmp_path.stat().st_uid) == 0:
        private.folder(tmp_path, or_roots=True)
    with pytest.raises(SettingsError, match="expected a folder of user 4711"):
        private.folder(tmp_path)


@pytest.mark.parametrize("pages", OPENERS)
def test_files_in_shared_memory_of_another_user_are_refused(shared: Path, pages: str) -> None:
    """Control pages and shards: the file's owner can read the weights, and write them."""
    place = shared / "file"
    as_another_user('head -c 8192 /dev/zero >"$1" && chmod 666 "$1"', place)
    with pytest.raises((SettingsError, CheckpointError), match="belongs to user nobody"):
        OPENERS[pages](place)


def test_an_agent_does_not_keep_weights_in_memory_of_another_user(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder's name follows from the home's path, so any user can make it first."""
    home.mkdir()
    (home / "secret").write_text("s")
    (home / "secret").chmod(0o600)
    as_another_user('mkdir -m 777 "$1"', shm_root(home))
    try:
        assert agent(["--machine", "m0", "--home", str(home)]) == 1
        message = capsys.readouterr().err
        assert f"{shm_root(home)}: this belongs to user nobody" in message
        with pytest.raises(SettingsError, match="belongs to user nobody"):
            LocalDriver(home).provision(1)
        assert not shm_dir(home, "m0").exists()
    finally:
        shm_root(home).rmdir()


def test_a_home_is_closed_to_others(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`up` closes one that a former release left open; the ledger and the bucket are closed by themselves."""
    home.mkdir(mode=0o755)
    (home / "ledger.db").touch(0o644)
    monkeypatch.setattr(bringup, "start", lambda *_: None)
    before = os.umask(0o022)
    try:
        control.up(Settings(home=home, s3_bucket="b", port=free_ports()), progress=lambda _: None)
    finally:
        os.umask(before)
    open_to_others = [path for path in (home, *home.rglob("*")) if path.stat().st_mode & 0o077]
    assert open_to_others == []
    assert {"ledger.db", "s3", "b", "secret"} <= {path.name for path in home.rglob("*")}


def test_what_sqlite_makes_beside_a_ledger_is_closed_too(tmp_path: Path) -> None:
    """The write-ahead log holds the same rows."""
    before = os.umask(0)
    try:
        ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
        ledger.create()
    finally:
        os.umask(before)
    ledger.jobs()
    made = {path.name: mode(path) for path in tmp_path.iterdir()}
    ledger.close()
    assert {"ledger.db", "ledger.db-wal"} <= made.keys()
    assert set(made.values()) == {0o600}


def test_a_home_of_another_user_is_refused(shared: Path) -> None:
    """Before anything is written to it."""
    place = shared / ".holdfast"
    as_another_user('mkdir -m 777 "$1"', place)
    with pytest.raises(SettingsError, match="belongs to user nobody"):
        control.up(Settings(home=place, port=free_ports()), progress=lambda _: None)
    assert list(place.iterdir()) == []
