"""The reference lists exactly the commands; all of them have JSON output; exit statuses and completion."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from holdfast.cli.main import app
from holdfast.cli.reference import page

ROOT = Path(__file__).resolve().parents[2]


def options() -> dict[str, set[str]]:
    group: Any = typer.main.get_command(app)
    found = {}
    for name, command in group.commands.items():
        inner = getattr(command, "commands", {name: command})
        found |= {key: {opt for each in one.params for opt in each.opts} for key, one in inner.items()}
    return found


_NAMED = re.compile(r"`holdfast ([a-z][a-z-]*)(?: ([^`\s]+))?")


def commands() -> dict[str, set[str]]:
    """Subcommands of each command; most have none."""
    group: Any = typer.main.get_command(app)
    return {name: set(getattr(command, "commands", ())) for name, command in group.commands.items()}


def texts() -> Iterator[Path]:
    """Sources and pages of the project."""
    for folder in ("flows", "tasks", "policies", "storage", "deployments", "docs"):
        yield from (ROOT / folder).rglob("*.py" if folder != "docs" else "*.md")
    for path in (ROOT / "holdfast").iterdir():
        if path.is_dir() and not path.is_symlink():
            yield from path.rglob("*.py")


def run(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    script = "from holdfast.cli.main import run; import sys; sys.argv[0] = 'holdfast'; run()"
    return subprocess.run(
        [sys.executable, "-c", script, *args],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        timeout=60,
        check=False,
    )


def test_the_page_is_the_commands() -> None:
    """Regenerate with `python -m holdfast.cli.reference > docs/cli.md`."""
    assert (ROOT / "docs/cli.md").read_text() == page()


def test_the_page_says_what_each_command_is_for() -> None:
    table = page().partition("## By purpose")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z-]+)[^`]*`", table))
    assert sorted(named) == sorted(commands())


def test_every_command_speaks_json() -> None:
    """But the demo, which is a story."""
    known = options()
    assert {"incidents", "machines", "status", "doctor", "plugins", "pool"} <= set(known)
    assert sorted(name for name in known if "--json" not in known[name]) == ["demo"]


def test_every_command_that_a_message_or_page_names_exists() -> None:
    """Commands in messages and pages that people are to type, with the subcommand where there are some."""
    groups = commands()
    named = [
        (path.relative_to(ROOT), command, rest)
        for path in texts()
        for command, rest in _NAMED.findall(path.read_text())
    ]
    assert len(named) > 100
    wrong = [
        f"{path}: holdfast {command} {rest}"
        for path, command, rest in named
        if command not in groups or (groups[command] and rest and rest not in groups[command])
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("args", "status", "text"),
    [
        (["--version"], 0, "holdfast"),
        (["incidentz"], 2, "No such command"),
        (["incident"], 2, "Missing argument"),
        (["status"], 1, "error: no .holdfast/"),
    ],
)
def test_exit_statuses(
    args: list[str], status: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As documented on the page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    done = run(*args)
    assert done.returncode == status, done.stderr
    assert text in done.stdout + done.stderr


def test_shells_complete_commands() -> None:
    """Bash's request while one types `holdfast inc<TAB>`."""
    asked = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": "holdfast inc", "COMP_CWORD": "1"}
    assert run(**asked).stdout.split() == ["incidents", "incident"]
