"""``holdfast up``: what it prints while it waits, what it ends when it fails, and two of them at once."""

from __future__ import annotations

import fcntl
import signal
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import drivers
from holdfast.deployments.local import bringup, control, pidfile
from holdfast.deployments.local.services import Service
from holdfast.drivers.base import Supplied
from holdfast.errors import UnavailableError
from holdfast.settings import Settings


@dataclass(frozen=True)
class Late(Service):
    """Answers when it was asked often enough."""

    asked: tuple[list[None], int] = ([], 0)

    def healthy(self) -> bool:
        self.asked[0].append(None)
        return len(self.asked[0]) > self.asked[1]


def test_what_is_missing_is_named_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first start takes a while: each line has the time, and what is not there yet."""
    monkeypatch.setattr(bringup, "REPORT_EVERY_S", 0.0)
    monkeypatch.setattr(bringup, "time", SimpleNamespace(monotonic=lambda: 100.0, sleep=lambda _: None))
    monkeypatch.setattr(pidfile, "running", lambda *_: None)
    done: Future[Any] = Future()
    done.set_result(None)
    services = [
        Late("s3", (), says="S3 server"),
        Late("prefect", (), says="Prefect server", asked=([], 2)),
    ]
    lines: list[str] = []
    bringup._wait(Settings(home=tmp_path), services, {"2 machines": done}, lines.append)
    assert lines[:3] == [
        "  0 s: waiting for S3 server, Prefect server",
        "S3 server is up",
        "  0 s: waiting for Prefect server",
    ]
    assert lines[-1] == "Prefect server is up"


class Retiring:
    """A driver that notes which machines are retired, and whether requests that wait were."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.retired: list[str] = []
        self.withdrawn = False

    def machines(self) -> list[Supplied]:
        return [Supplied(name=name, alive=True, detail="") for name in self.names]

    def withdraw(self) -> None:
        self.withdrawn = True

    def retire(self, machine: str, incarnation: str = "") -> None:
        self.retired.append(machine)


@pytest.mark.parametrize("before", [(), ("m0", "m1")])
def test_an_up_that_fails_ends_only_the_machines_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: tuple[str, ...]
) -> None:
    """Those of before may train: their control plane is only restarted, and its S3 may be away for a while."""
    driver = Retiring(*before, "m6")

    def fails(_settings: Settings, _wanted: int, _progress: Any, started: list[str]) -> None:
        started.append("m6")
        raise UnavailableError("alert gateway did not come up")

    monkeypatch.setattr(drivers, "from_settings", lambda _: driver)
    monkeypatch.setattr(control.service_ports, "check", lambda _: None)
    monkeypatch.setattr(bringup, "start", fails)
    with pytest.raises(UnavailableError, match="alert gateway"):
        control.up(Settings(home=tmp_path / ".holdfast"), 7, lambda _: None)
    assert driver.retired == ["m6"]
    assert driver.withdrawn is not bool(before)


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="no other thread handles signals"
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_up_that_gets_a_signal_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """As on Ctrl-C; a second one, while it cleans up, changes nothing; afterwards the signal is what it was."""
    driver = Retiring("m6")
    retire = driver.retire

    def asked_again(machine: str, incarnation: str = "") -> None:
        signal.raise_signal(number)
        retire(machine, incarnation)

    def ended(_settings: Settings, _wanted: int, _progress: Any, started: list[str]) -> None:
        started.append("m6")
        signal.raise_signal(number)

    monkeypatch.setattr(drivers, "from_settings", lambda _: driver)
    monkeypatch.setattr(driver, "retire", asked_again)
    monkeypatch.setattr(control.service_ports, "check", lambda _: None)
    monkeypatch.setattr(bringup, "start", ended)
    before = signal.signal(number, signal.SIG_DFL)  # these tests may run under nohup
    try:
        with pytest.raises(SystemExit) as raised:
            control.up(Settings(home=tmp_path / ".holdfast"), 1, lambda _: None)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert raised.value.code == 128 + number
    assert driver.retired == ["m6"]


def test_an_up_under_nohup_goes_on_without_its_terminal() -> None:
    """SIGHUP stays ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with control._ended_in_order():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_service_that_does_not_come_up_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For how long it was waited, whether its process runs, what else is missing, and the end of its log."""
    now = iter(range(0, 10_000, 60))
    monkeypatch.setattr(bringup, "time", SimpleNamespace(monotonic=lambda: next(now), sleep=lambda _: None))
    runs = SimpleNamespace(pid=4711)
    monkeypatch.setattr(pidfile, "running", lambda _home, name: runs if name != "s3" else None)
    services = [
        Late("prefect", (), says="Prefect server", asked=([], 1000)),
        Late("s3", (), says="S3 server", asked=([], 1000)),
    ]
    with pytest.raises(UnavailableError) as raised:
        bringup._wait(Settings(home=tmp_path, up_s=300), services, {}, lambda _: None)
    message = str(raised.value)
    assert message.startswith(
        "Prefect server did not come up within 300 s (HOLDFAST_UP_S); its process 4711 runs"
    )
    assert "Nor did S3 server." in message
    assert "(no log)" in message


def test_the_second_up_waits_for_the_first(tmp_path: Path) -> None:
    """Else each would start all of it, and the one that fails for that would end what the other has started."""
    lines: list[str] = []
    with (tmp_path / "up.lock").open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)

        def progress(line: str) -> None:
            lines.append(line)
            fcntl.flock(first, fcntl.LOCK_UN)

        with control._alone(tmp_path, progress):
            assert lines == ["another `holdfast up` of this folder is under way: waiting for it"]
