"""Settings that no site can work with are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.settings import Settings, load

UNSET = [name for name, field in Settings.model_fields.items() if field.default is None]


@pytest.mark.parametrize("name", UNSET)
def test_an_empty_value_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Over that of ``settings.env``; an empty path would be the working directory."""
    value = "true" if name == "chaos_allowed" else str(tmp_path)
    (tmp_path / "settings.env").write_text(f"HOLDFAST_{name.upper()}={value}\n")
    assert getattr(load(tmp_path), name) is not None
    monkeypatch.setenv(f"HOLDFAST_{name.upper()}", "")
    assert getattr(load(tmp_path), name) is None


def test_a_home_that_the_locale_cannot_name(tmp_path: Path) -> None:
    """Its path could be written into no file and no message."""
    home = tmp_path / "höme"
    home.mkdir()
    code = "from holdfast import settings; from pathlib import Path; settings.load(Path('.holdfast'))"

    def load(utf8: str) -> str:
        environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": utf8, "PYTHONCOERCECLOCALE": "0"}
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, env=environment, cwd=home, capture_output=True, text=True, check=False, timeout=120
        )
        return done.stderr

    assert "SettingsError: setting HOLDFAST_HOME" in load("0")
    assert "set PYTHONUTF8=1 or LC_ALL=C.UTF-8" in load("0")
    assert load("1") == ""
