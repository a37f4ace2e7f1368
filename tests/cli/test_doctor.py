"""``holdfast doctor``: each check in both outcomes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import settings
from holdfast.cli import checks
from tests.cli.conftest import Cli


def test_checks_of_this_machine_are_listed_with_advice(cli: Cli, project: Path) -> None:
    """With the services down it fails, and shows how to start them."""
    result = cli("doctor", "--json")
    rows = {row["name"]: row for row in json.loads(result.out)}
    assert result.status == 1
    assert rows["python"]["ok"]
    assert rows["secret"]["ok"]
    assert not rows["gateway"]["ok"]
    assert "holdfast up" in rows["gateway"]["advice"]
    assert str(project) in rows["disk"]["found"]


def test_outside_a_project_the_machine_is_still_checked(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``doctor`` is what people run first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    result = cli("doctor")
    assert result.status == 1
    assert "shared memory" in result.out
    assert "not a Holdfast project" in result.out


def test_a_home_that_was_not_made_yet(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``HOLDFAST_HOME`` is set and ``holdfast up`` was never run: each check reports it, and none makes the folder."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "srv" / "holdfast"))
    monkeypatch.setenv("HOLDFAST_PORT", "1")
    result = cli("doctor", "--json")
    rows = {row["name"]: row for row in json.loads(result.out)}
    assert result.status == 1
    assert rows["disk"]["ok"]
    assert "`holdfast up` creates it" in rows["secret"]["advice"]
    assert list(tmp_path.iterdir()) == []


def test_small_shared_memory_is_wrong(tmp_path: Path) -> None:
    """The advice names the option of containers."""
    check = checks.shared_memory(tmp_path, needed_bytes=1 << 60)
    assert not check.ok
    assert "--shm-size" in check.advice


def test_open_secret_is_wrong(project: Path) -> None:
    """Mode 0600 or not at all."""
    (project / ".holdfast" / "secret").chmod(0o644)
    check = checks.secret_file(settings.load(project / ".holdfast"))
    assert not check.ok
    assert "chmod 600" in check.advice
