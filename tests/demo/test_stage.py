"""The demo's own control plane: started for it, and nothing left running afterwards."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from holdfast import secret
from holdfast.demo import stage
from holdfast.errors import RefusedError, SettingsError
from holdfast.policies.config.policy import Policy
from holdfast.settings import Settings
from tests.demo.test_report import a_report


class Control:
    """Stands for ``up`` and ``down``."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.running = False
        self.fails = False

    def is_up(self, folder: Path) -> bool:
        return self.running

    def up(self, folder: Path, machines: int, progress: Any, *, port: int | None) -> Settings:
        self.calls.append(f"up {machines} armed={os.environ['HOLDFAST_ARM_FAULTS']}")
        if self.fails:
            raise SettingsError("port 4300 is taken.")
        secret.create(folder / "secret")
        (folder / "settings.env").write_text(
            f"HOLDFAST_PORT=1\nHOLDFAST_POLICY_FILE={os.environ['HOLDFAST_POLICY_FILE']}\n"
        )
        return Settings(home=folder)

    def down(self, folder: Path, progress: Any) -> None:
        if not self.fails:
            self.calls.append("down")


class Run:
    """Stands for the run itself."""

    act: Any = staticmethod(a_report)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def play(self) -> Any:
        return Run.act()


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Control:
    fake = Control()
    monkeypatch.setattr(stage, "control", fake)
    monkeypatch.setattr(stage, "DemoRun", Run)
    monkeypatch.setattr(Run, "act", staticmethod(a_report))
    monkeypatch.setenv("HOLDFAST_ARM_FAULTS", "0")
    # Set, then deleted: so that what the stage sets is taken back after the test.
    monkeypatch.setenv("HOLDFAST_POLICY_FILE", "")
    monkeypatch.delenv("HOLDFAST_POLICY_FILE")
    return fake


def play(folder: Path, *, keep: bool = False) -> bool:
    return stage.play(
        folder / "train_gpt.py", folder, steps=100, port=None, keep=keep, console=Console(), say=print
    )


def test_services_come_up_armed_and_go_down(control: Control, tmp_path: Path) -> None:
    """Six machines; the report lies in the project."""
    assert play(tmp_path)
    assert control.calls == ["up 6 armed=1", "down"]
    assert (tmp_path / "demo" / "report.html").is_file()
    assert (tmp_path / "demo" / "report.json").is_file()


def test_its_lenient_breaker_is_for_this_run_only(control: Control, tmp_path: Path) -> None:
    """The policy is valid, differs in the breaker only, and is not remembered; a chosen one is kept."""
    demo, packaged = Policy.load(stage.POLICY), Policy.load()
    assert demo.breaker.window_s < packaged.breaker.window_s
    assert demo.model_copy(update={"breaker": packaged.breaker}) == packaged
    assert play(tmp_path)
    assert (tmp_path / "settings.env").read_text() == "HOLDFAST_PORT=1\n"
    os.environ["HOLDFAST_POLICY_FILE"] = "mine.yaml"
    assert play(tmp_path)
    assert "mine.yaml" in (tmp_path / "settings.env").read_text()


def test_keep_leaves_them_up(control: Control, tmp_path: Path) -> None:
    """Only when it was asked for."""
    assert play(tmp_path, keep=True)
    assert control.calls == ["up 6 armed=1"]


def test_a_failure_is_a_failure(control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed recovery makes the exit status."""
    monkeypatch.setattr(Run, "act", staticmethod(lambda: a_report(ok=False)))
    assert not play(tmp_path)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_running(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    """Even with ``--keep``; the handler is put back."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Run, "act", staticmethod(lambda: signal.raise_signal(how)))
    ignored = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # by test runners with several processes
    try:
        with pytest.raises(KeyboardInterrupt):
            play(tmp_path, keep=True)
    finally:
        signal.signal(signal.SIGINT, ignored)
    assert control.calls == ["up 6 armed=1", "down"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_start_that_fails_says_why(control: Control, tmp_path: Path) -> None:
    """The error of ``up`` is the error of the demo."""
    control.fails = True
    with pytest.raises(SettingsError, match="port 4300 is taken"):
        play(tmp_path)


def test_a_control_plane_that_runs_is_left_alone(control: Control, tmp_path: Path) -> None:
    """A person may be training there."""
    control.running = True
    with pytest.raises(RefusedError, match="holdfast down"):
        play(tmp_path)
    assert control.calls == []
