"""The supervisor with real processes, and its parts."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from pydantic import SecretStr

from holdfast import drivers, envfile, secret, settings
from holdfast.deployments.local import control, pidfile, service_ports, supervisor
from holdfast.deployments.local.services import Service, embedded
from holdfast.deployments.local.supervisor import FIRST_DELAY_S, STOP_S, Keeper
from holdfast.errors import SettingsError, UnavailableError
from holdfast.paths import log_dir
from holdfast.settings import Settings
from tests.deployments.worker_kit import ROOT, gone
from tests.e2e.waiting import free_ports, wait_for

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a supervisor of toy services; kills it at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def launch(*options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.deployments.supervised", str(tmp_path), *options]
        started.append(subprocess.Popen(command, cwd=ROOT))
        return started[-1]

    yield launch
    for process in started:
        process.kill()
        process.wait()


def service(home: Path, name: str) -> psutil.Process:
    return wait_for(f"{name} runs", lambda: pidfile.running(home, name))


def log_of(home: Path, name: str) -> str:
    log = log_dir(home) / f"{name}.log"
    return log.read_text() if log.exists() else ""


@pytest.mark.e2e
def test_killed_service_is_started_again(start: Start, tmp_path: Path) -> None:
    """And the restart is in the supervisor's log, with what ended it."""
    start()
    killed = service(tmp_path, "first")
    killed.kill()
    wait_for("a new one", lambda: (new := pidfile.running(tmp_path, "first")) and new.pid != killed.pid)
    assert "first ended with SIGKILL" in log_of(tmp_path, "supervisor")
    assert service(tmp_path, "second").is_running()


@pytest.mark.e2e
async def test_a_service_whose_pid_cannot_be_written_is_started_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk: it runs, and is waited for; else every few seconds another one would be started beside it."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pidfile, "write", full)
    log_dir(tmp_path).mkdir(parents=True)
    starts = tmp_path / "starts"
    script = f"import time; open({str(starts)!r}, 'a').write('x'); time.sleep(1000)"
    keeper = Keeper(Service("one", (sys.executable, "-c", script)), tmp_path)
    kept = asyncio.create_task(keeper.keep())
    while not (starts.exists() and starts.read_text()):  # noqa: ASYNC110  (written by another process)
        await asyncio.sleep(0.05)
    await asyncio.sleep(4 * FIRST_DELAY_S)
    await keeper.stop()
    await kept
    assert starts.read_text() == "x"


def test_the_log_of_a_service_that_runs_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One former log is kept; the service goes on writing to the file that it has open."""
    monkeypatch.setattr(supervisor, "LOG_LIMIT_BYTES", 10)
    log = tmp_path / "gateway.log"
    with log.open("ab", buffering=0) as output:
        output.write(b"short\n")
        supervisor._cut(log)
        assert log.read_bytes() == b"short\n"
        output.write(b"a long line\n")
        supervisor._cut(log)
        output.write(b"after\n")
    assert log.read_bytes() == b"after\n"
    assert log.with_suffix(".log.1").read_bytes() == b"short\na long line\n"
    supervisor._cut(tmp_path / "missing.log")


@pytest.mark.e2e
def test_service_that_cannot_start_is_tried_ever_later(start: Start, tmp_path: Path) -> None:
    """It disturbs no other, and does not spin."""
    start("missing")
    service(tmp_path, "first")
    wait_for(
        "three attempts", lambda: log_of(tmp_path, "supervisor").count("missing could not be started") >= 3
    )
    text = log_of(tmp_path, "supervisor")
    assert "again in 0.1 s" in text
    assert "again in 0.9 s" in text


@pytest.mark.e2e
def test_sighup_ends_nothing(start: Start, tmp_path: Path) -> None:
    """As for other daemons; a service that it ends starts again."""
    supervisor = start()
    first = service(tmp_path, "first")
    supervisor.send_signal(signal.SIGHUP)
    wait_for("a word of it", lambda: "SIGHUP" in log_of(tmp_path, "supervisor"))
    assert first.is_running()


@pytest.mark.thorough
@pytest.mark.e2e
def test_sigterm_stops_all_last_started_first(start: Start, tmp_path: Path) -> None:
    """One that ignores SIGTERM is killed; the whole stays bounded."""
    supervisor = start("stubborn")
    wait_for("stubborn is up", lambda: "up" in log_of(tmp_path, "stubborn"))
    children = [service(tmp_path, name) for name in ("first", "second", "stubborn")]
    supervisor.terminate()
    assert supervisor.wait(STOP_S + 60) == 0
    assert gone(children)
    text = log_of(tmp_path, "supervisor")
    assert text.index("stubborn stopped") < text.index("second stopped") < text.index("first stopped")


@pytest.mark.e2e
def test_services_of_a_killed_supervisor_end(start: Start, tmp_path: Path) -> None:
    """Nothing is orphaned for ever."""
    supervisor = start()
    children = [service(tmp_path, name) for name in ("first", "second")]
    supervisor.kill()
    wait_for("all gone", lambda: gone(children))


def test_pid_file_of_another_process_is_not_believed(tmp_path: Path) -> None:
    """A pid used again belongs to another process."""
    pidfile.write(tmp_path, "x", os.getpid())
    assert pidfile.running(tmp_path, "x") is not None
    file = pidfile.path(tmp_path, "x")
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"start": f"{record['start']}0"}))
    assert pidfile.running(tmp_path, "x") is None
    before = record["create_time"] - 100
    file.write_text(json.dumps(record | {"create_time": before}))
    assert pidfile.running(tmp_path, "x") is not None, "the wall clock was set"
    file.write_text(json.dumps({"pid": record["pid"], "create_time": before}))  # of an earlier release
    assert pidfile.running(tmp_path, "x") is None
    file.write_text("torn")
    assert pidfile.running(tmp_path, "x") is None
    pidfile.remove(tmp_path, "x")
    assert pidfile.running(tmp_path, "x") is None


@pytest.mark.parametrize(("offset", "who"), [(0, "gateway"), (1, "Prefect server"), (2, "S3 server")])
def test_taken_port_is_named_with_the_way_out(tmp_path: Path, offset: int, who: str) -> None:
    """Which port, who needs it, what to do."""
    first = free_ports()
    message = rf"port {first + offset} .*{who}.*holdfast up --port N"
    with socket.create_server(("127.0.0.1", first + offset)), pytest.raises(SettingsError, match=message):
        service_ports.check(Settings(home=tmp_path, port=first))


def test_ports_of_services_elsewhere_are_not_needed(tmp_path: Path) -> None:
    """An external Prefect server has its own; a gateway that a person started here has ours already."""
    first = free_ports()
    with socket.create_server(("127.0.0.1", first + 1)):
        service_ports.check(Settings(home=tmp_path, port=first, prefect_api_url="http://elsewhere/api"))
    with socket.create_server(("127.0.0.1", first)):
        service_ports.check(Settings(home=tmp_path, port=first, gateway_url=f"http://127.0.0.1:{first}"))


def test_services_elsewhere_are_not_started(tmp_path: Path) -> None:
    """Prefect, S3 and the gateway can be operated by others."""
    secret.create(tmp_path / "secret")
    secret.create_prefect_auth(Settings(home=tmp_path))
    names = [each.name for each in embedded(Settings(home=tmp_path))]
    assert names == ["prefect", "s3", "gateway", "worker"]
    elsewhere = Settings(
        home=tmp_path, prefect_api_url="http://a/api", s3_endpoint="http://b", gateway_url="http://c"
    )
    assert [each.name for each in embedded(elsewhere)] == ["worker"]
    another = [each.name for each in embedded(Settings(home=tmp_path, store="acme://place"))]
    assert another == ["prefect", "gateway", "worker"]


def test_secret_is_on_no_command_line(tmp_path: Path) -> None:
    """Every user of the host can read command lines."""
    known = secret.create(tmp_path / "secret")
    secret.create_prefect_auth(Settings(home=tmp_path))
    password = secret.prefect_auth(Settings(home=tmp_path)).partition(":")[2]
    for each in embedded(Settings(home=tmp_path)):
        assert known not in " ".join(each.command)
        assert password not in " ".join(each.command)


def test_machines_may_stay_when_the_control_plane_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their driver is not even asked; without the option it is."""

    def asked(_: Settings) -> None:
        raise UnavailableError("the driver was asked")

    monkeypatch.setattr(drivers, "from_settings", asked)
    control.down(tmp_path, lambda _: None, keep_machines=True)
    with pytest.raises(UnavailableError, match="the driver was asked"):
        control.down(tmp_path, lambda _: None)


def test_choices_are_remembered_beside_what_is_there(tmp_path: Path) -> None:
    """Lines of the user stay; secrets are not written; only the owner may read."""
    file = tmp_path / "settings.env"
    file.write_text("# mine\nHOLDFAST_HEARTBEAT_S=2\nHOLDFAST_PORT=1111\n")
    envfile.remember(Settings(home=tmp_path, port=5555, s3_secret_key=SecretStr("hidden")))
    text = file.read_text()
    assert "# mine" in text
    assert "hidden" not in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    loaded = settings.load(tmp_path)
    assert (loaded.port, loaded.heartbeat_s) == (5555, 2)
