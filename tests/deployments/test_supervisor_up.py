"""``holdfast up`` and ``down`` with every service real."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from holdfast.deployments.local import control, pidfile
from holdfast.errors import SettingsError, UnavailableError
from holdfast.settings import Settings
from tests.deployments.worker_kit import free_port, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    before = dict(os.environ)
    yield tmp_path / "home"
    control.down(tmp_path / "home", lambda _: None)
    # Registering sets Prefect's variables for its own process.
    os.environ.clear()
    os.environ.update(before)


def free_ports() -> int:
    """The first of three free ports in a row."""
    while True:
        base = free_port()
        try:
            for port in range(base, base + 3):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return base


def of_home(home: Path) -> list[psutil.Process]:
    """Every process that was started for ``home``."""
    return [
        each for each in psutil.process_iter(["cmdline"]) if str(home) in " ".join(each.info["cmdline"] or [])
    ]


def test_up_twice_kill_and_down(home: Path) -> None:
    """Everything comes up, a second up changes nothing, what dies comes back, down leaves state and nothing else."""
    said: list[str] = []
    settings = control.up(home, 1, said.append, port=free_ports())
    assert control.is_up(home)
    assert any("7 deployments" in line for line in said)
    assert any("1 machines are ready" in line for line in said)
    assert httpx.get(f"{settings.gateway}/healthz").status_code == 200

    before = {each.pid for each in of_home(home)}
    control.up(home, 1, said.append)
    assert {each.pid for each in of_home(home)} == before
    assert any("up already" in line for line in said)

    gateway = pidfile.running(home, "gateway")
    assert gateway
    gateway.kill()

    def answers() -> bool:
        try:
            return httpx.get(f"{settings.gateway}/healthz", timeout=1).status_code == 200
        except httpx.HTTPError:
            return False

    wait_for("another gateway", lambda: (new := pidfile.running(home, "gateway")) and new.pid != gateway.pid)
    wait_for("it answers", answers, deadline_s=60)

    control.down(home, said.append)
    wait_for("no process", lambda: not of_home(home), deadline_s=10)
    assert not control.is_up(home)
    assert (home / "ledger.db").exists()
    assert (home / "prefect" / "prefect.db").exists()
    control.down(home, said.append)


def test_taken_port_leaves_nothing(home: Path) -> None:
    """Refused before the folder is made."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingsError, match="--port N"):
        control.up(home, 1, lambda _: None, port=taken.getsockname()[1])
    assert not home.exists()


def test_unreachable_s3_stops_everything_again(home: Path) -> None:
    """The message names the setting; no process is left."""
    settings = Settings(home=home, port=free_ports(), s3_endpoint=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(SettingsError, match="HOLDFAST_S3_ENDPOINT"):
        control.up(settings, 0, lambda _: None)
    wait_for("no process", lambda: not of_home(home), deadline_s=10)


def test_service_that_dies_stops_everything_and_shows_its_log(home: Path, tmp_path: Path) -> None:
    """The message names the service and ends with the last lines of its log."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("no_such_threshold: 1\n")
    settings = Settings(home=home, port=free_ports(), policy_file=policy)
    with pytest.raises(UnavailableError, match="alert gateway did not come up") as raised:
        control.up(settings, 0, lambda _: None)
    assert "no_such_threshold" in str(raised.value)
    wait_for("no process", lambda: not of_home(home), deadline_s=10)
