"""``holdfast up`` and ``down`` with every service real."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

from holdfast import secret
from holdfast.deployments.local import control, pidfile
from holdfast.drivers import processes
from holdfast.drivers.local import LocalDriver
from holdfast.errors import SettingsError, UnavailableError
from holdfast.paths import machine_dir
from holdfast.settings import Settings
from tests.e2e.waiting import free_ports, wait_for
from tests.prefect_http import PrefectHttp

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    before = dict(os.environ)
    yield tmp_path / "a site" / ".holdfast"
    control.down(tmp_path / "a site" / ".holdfast", lambda _: None)
    # Registering sets Prefect's variables for its own process.
    os.environ.clear()
    os.environ.update(before)


def of_home(home: Path) -> list[psutil.Process]:
    """Every process that was started for ``home``."""
    return [
        each for each in psutil.process_iter(["cmdline"]) if str(home) in " ".join(each.info["cmdline"] or [])
    ]


def serving(home: Path) -> dict[str, int | None]:
    """Process of each service, of their supervisor and of each machine's agent: these start others, sooner or later."""
    names = ("supervisor", "prefect", "s3", "gateway", "worker")
    found = {name: pidfile.running(home, name) for name in names}
    machines = [each.name for each in LocalDriver(home).machines()]
    found |= {name: processes.find_agent(machine_dir(home, name)) for name in machines}
    return {name: process and process.pid for name, process in found.items()}


@pytest.fixture
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A company's host: a proxy that cannot reach loopback, a Prefect of its own, a narrow umask."""
    own = tmp_path / "own prefect"
    own.mkdir()
    (own / "profiles.toml").write_text(
        'active = "theirs"\n[profiles.theirs]\nPREFECT_API_URL = "http://127.0.0.1:9/api"\n'
    )
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.lower(), "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(own))
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(own / "profiles.toml"))
    monkeypatch.setenv("PREFECT_API_KEY", "theirs")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("HOLDFAST_POLICY_FILE", "our policy.yaml")
    monkeypatch.chdir(tmp_path)
    Path("our policy.yaml").write_text("breaker: {at_least: 7}\n")
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("surroundings")
def test_up_twice_kill_and_down(home: Path) -> None:
    """Everything comes up, a second up registers what was deleted, what dies comes back, down leaves state alone."""
    lines: list[str] = []
    settings = control.up(home, 1, lines.append, port=free_ports())
    assert control.is_up(home)
    declared = yaml.safe_load((Path(__file__).parents[2] / "prefect.yaml").read_text())["deployments"]
    assert any(f"{len(declared)} deployments" in line for line in lines)
    assert any("1 machine is ready" in line for line in lines)

    def answers() -> bool:
        try:
            return httpx.get(f"{settings.gateway}/healthz", timeout=10, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    wait_for("it answers", answers)
    before = serving(home)
    assert None not in before.values()
    with PrefectHttp(
        base_url=settings.prefect_api,
        auth=tuple(secret.prefect_auth(settings).split(":", 1)),  # type: ignore[arg-type]
        trust_env=False,
    ) as prefect:
        lost = prefect.get("/deployments/name/job-hang/job-hang").json()["id"]
        assert prefect.delete(f"/deployments/{lost}").is_success
        control.up(home, 1, lines.append, port=settings.port + 5)
        assert prefect.get("/deployments/name/job-hang/job-hang").is_success
    assert "registered again: job-hang" in lines
    assert any(f"--port {settings.port + 5}: the port is not changed" in line for line in lines)
    assert serving(home) == before
    assert any("running already" in line for line in lines)

    gateway = pidfile.running(home, "gateway")
    assert gateway
    gateway.kill()
    with pytest.raises(OSError, match="in use"):  # nor is the port free for others meanwhile
        socket.create_server((settings.host, settings.port))
    wait_for("another gateway", lambda: (new := pidfile.running(home, "gateway")) and new.pid != gateway.pid)
    wait_for("it answers", answers)

    control.down(home, lines.append)
    wait_for("no process", lambda: not of_home(home))
    assert not control.is_up(home)
    assert (home / "ledger.db").exists()
    assert (home / "prefect" / "prefect.db").exists()
    control.down(home, lines.append)


def test_a_proxy_of_another_kind_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the folder is made."""
    monkeypatch.setenv("ALL_PROXY", "socks4://proxy:1080")
    with pytest.raises(SettingsError, match="ALL_PROXY: expected a proxy of kind"):
        control.up(home, 1, lambda _: None, port=free_ports())
    assert not home.exists()


def test_taken_port_leaves_nothing(home: Path) -> None:
    """Refused before the folder is made."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingsError, match="--port N"):
        control.up(home, 1, lambda _: None, port=taken.getsockname()[1])
    assert not home.exists()


def test_unreachable_s3_stops_everything_again(home: Path) -> None:
    """The message names the setting; no process is left."""
    settings = Settings(home=home, port=free_ports(), s3_endpoint=f"http://127.0.0.1:{free_ports(1)}")
    with pytest.raises(SettingsError, match="HOLDFAST_S3_ENDPOINT"):
        control.up(settings, 0, lambda _: None)
    wait_for("no process", lambda: not of_home(home))
    assert not (home / "settings.env").exists(), "the next `up` would fail for it too"


@pytest.mark.thorough
def test_service_that_dies_stops_everything_and_shows_its_log(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the service and ends with the last lines of its log."""
    monkeypatch.setattr(control.service_ports, "check", lambda _: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(home=home, port=taken.getsockname()[1])
        with pytest.raises(UnavailableError, match="alert gateway did not come up") as raised:
            control.up(settings, 0, lambda _: None)
    assert "in use" in str(raised.value)
    wait_for("no process", lambda: not of_home(home))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"policy_file": "policy.yaml"}, "no_such_threshold"),
        ({"policy_file": "missing.yaml"}, "missing.yaml"),
        ({"driver": "abacus"}, "abacus"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_made(
    wrong: dict[str, str], text: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that is up half, or a setting that stays, would be the next thing to repair."""
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text("no_such_threshold: 1\n")
    with pytest.raises(SettingsError, match=text):
        control.up(Settings.model_validate({"home": home, **wrong}), 1, lambda _: None)
    assert not home.exists()


@pytest.mark.thorough
def test_foreground_ends_services_at_sigterm_and_leaves_machines(home: Path) -> None:
    """A container of the control plane that is replaced does not take the job's machines with it."""
    command = [sys.executable, "-P", "-c", "from holdfast.cli.main import run; run()", "up", "--foreground"]
    options = ["--machines", "1", "--home", str(home), "--port", str(free_ports())]
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "PREFECT_"))}
    with subprocess.Popen([*command, *options], env=clean, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lines: list[str] = []

        def up() -> bool:
            lines.append(process.stdout.readline())
            assert lines[-1], f"it ended: {lines}"
            return "status page" in lines[-1]

        # On a busy host it waits for minutes itself, and reports for what.
        wait_for(lambda: f"all is up: {lines[-5:]}", up, 360)
        assert control.is_up(home)
        process.terminate()
        assert process.wait(180) == 0
    assert not control.is_up(home)
    assert [machine.alive for machine in LocalDriver(home).machines()] == [True]


def test_more_machines_than_a_host_carries_are_refused(home: Path) -> None:
    """Before anything is started; with an engine they are welcome."""
    with pytest.raises(SettingsError, match="65: expected 64 at most"):
        control.up(home, 65, lambda _: None)
    assert not home.exists()
