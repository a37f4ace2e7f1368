"""The CLI in this process, against a gateway that answers from memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast import secret
from holdfast.cli import main
from holdfast.client.gateway import Gateway
from holdfast.settings import HOME_NAME
from tests.cli.fake_gateway import FakeGateway


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run ``holdfast`` with arguments."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*args: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["holdfast", *args])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main.run()
        captured = capsys.readouterr()
        code = left.value.code
        return Result(code if isinstance(code, int) else int(code is not None), captured.out, captured.err)

    return call


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose gateway's port has no listener."""
    home = tmp_path / HOME_NAME
    home.mkdir()
    (home / "settings.env").write_text("HOLDFAST_PORT=1\n")
    secret.create(home / "secret")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    return tmp_path


@pytest.fixture
def gateway(project: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGateway:
    """The project with a gateway that runs."""
    fake = FakeGateway(secret.read(project / HOME_NAME / "secret"))
    real = Gateway.open
    monkeypatch.setattr(Gateway, "open", lambda settings: real(settings, fake.transport))
    return fake
