"""A new playbook passes as it is written, and wrong names are refused before anything is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from setuptools.config.pyprojecttoml import read_configuration
from typer.testing import CliRunner

from holdfast.cli import main
from holdfast.cli.main import app
from holdfast.errors import HoldfastError, RefusedError, SettingsError
from holdfast.scaffold import playbook

ROOT = Path(__file__).resolve().parents[2]


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("into", "words"),
    [("notes.txt", "notes.txt: expected a folder"), ("/proc/site", "/proc/site: No such file")],
)
def test_a_folder_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], into: str, words: str
) -> None:
    """One message with the path, no traceback."""
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("mine")
    monkeypatch.setattr(sys, "argv", ["holdfast", "new", "playbook", "fan_fault", "--into", into])
    with pytest.raises(SystemExit) as left:
        main.run()
    assert left.value.code == 1
    assert words in capsys.readouterr().err
    assert files(tmp_path) == {"notes.txt": "mine"}


@pytest.mark.timeout(1200)
def test_two_playbooks_pass_as_written(tmp_path: Path) -> None:
    """Their tests, ruff (format and rules) and mypy --strict; the second beside the first."""
    folder = tmp_path / "site-playbooks"
    written = playbook.write("fan_fault", folder)
    assert [str(path.relative_to(folder)) for path in written] == [
        "pyproject.toml",
        "prefect.yaml",
        "site_playbooks/policy.yaml",
        "site_playbooks/__init__.py",
        "site_playbooks/fan_fault.py",
        "tests/test_fan_fault.py",
        "tests/fan_fault.yaml",
    ]
    playbook.write("nvlink_flap", folder)
    names = {each["name"] for each in yaml.safe_load((folder / "prefect.yaml").read_text())["deployments"]}
    assert names == {"fan-fault", "nvlink-flap"}

    assert "4 passed" in run(folder, "pytest", "-q", "-W", "ignore")
    run(folder, "ruff", "check", "--extend-select", "ANN,B,D1,I,N,PL,PT,RUF,SIM,UP", ".")
    run(folder, "ruff", "format", "--check", ".")
    # From here, with the project's options and cache, so that Holdfast itself is not checked once more.
    run(ROOT, "mypy", str(folder / "site_playbooks"), str(folder / "tests"))


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("Thermal", SettingsError, "'Thermal': expected a lower-case Python identifier"),
        ("a-b", SettingsError, "expected a lower-case"),
        ("class", SettingsError, "expected a lower-case"),
        ("a" * 33, SettingsError, "at most 32 characters"),
        ("job_hang", RefusedError, "one of Holdfast's own"),
    ],
)
def test_wrong_names_are_refused(tmp_path: Path, name: str, error: type[HoldfastError], text: str) -> None:
    """With what was expected, before anything is written."""
    with pytest.raises(error, match=text):
        playbook.write(name, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    """A second playbook of one name, a project that is no playbooks', half a repository, an odd policy file."""
    folder = tmp_path / "mine"
    playbook.write("fan_fault", folder)
    before = files(folder)
    with pytest.raises(RefusedError, match=r"'fan_fault' is in .*pyproject.toml already"):
        playbook.write("fan_fault", folder)
    (folder / "tests/test_hot.py").write_text("# mine\n")
    with pytest.raises(RefusedError, match=r"test_hot.py is there already"):
        playbook.write("hot", folder)
    (folder / "tests/test_hot.py").unlink()
    (folder / "mine/policy.yaml").write_text("playbooks: {}\n")
    with pytest.raises(RefusedError, match="no line '  classes:'"):
        playbook.write("hot", folder)
    (folder / "mine/policy.yaml").write_text(before["mine/policy.yaml"])
    assert files(folder) == before

    with pytest.raises(RefusedError, match=r"is the project 'holdfast', which has no playbooks"):
        playbook.write("hot", ROOT)
    (folder / "pyproject.toml").unlink()
    with pytest.raises(RefusedError, match=r"is there, and pyproject\.toml beside it is not"):
        playbook.write("hot", folder)


def test_the_command_says_what_it_wrote_and_how_to_go_on(tmp_path: Path) -> None:
    """As lines, or as JSON."""
    result = CliRunner().invoke(app, ["new", "playbook", "fan_fault", "--into", str(tmp_path / "a")])
    assert result.exit_code == 0, result.output
    assert "fan_fault.py" in result.output
    assert "python -m pytest" in result.output
    result = CliRunner().invoke(
        app, ["new", "playbook", "fan_fault", "--into", str(tmp_path / "b"), "--json"]
    )
    assert len(json.loads(result.output)) == 7


def test_helper_modules_in_folders_are_part_of_what_is_installed(tmp_path: Path) -> None:
    """A playbook that outgrows one file: installed from a wheel, a folder that is left out is missing at its import."""
    playbook.write("fan_fault", tmp_path, "fans")
    (tmp_path / "fans" / "readings").mkdir()
    (tmp_path / "fans" / "readings" / "__init__.py").touch()
    found = read_configuration(tmp_path / "pyproject.toml", expand=True)["tool"]["setuptools"]["packages"]
    assert sorted(found) == ["fans", "fans.readings"]
