"""Registering the deployments, by ourselves and with Prefect's own command, on a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.deployments.worker import manifest
from holdfast.errors import UnavailableError
from holdfast.scaffold import playbook
from holdfast.settings import Settings
from tests.deployments.worker_kit import ROOT, Api, prefect_server
from tests.e2e.waiting import free_ports, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with prefect_server(tmp_path_factory.mktemp("prefect")) as url:
        yield Api(url)


@pytest.fixture
def settings(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    # register() sets the environment of its process; let the test give it back.
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    return Settings(home=tmp_path, prefect_api_url=api.url)


def run_register(settings: Settings) -> str:
    """In a process of its own, as Prefect reads its environment once."""
    code = (
        "import asyncio, sys; from pathlib import Path; from holdfast.settings import Settings;"
        "from holdfast.deployments.worker.register import register;"
        "print(asyncio.run(register(Settings(home=Path(sys.argv[1]), prefect_api_url=sys.argv[2]))))"
    )
    command = [sys.executable, "-c", code, str(settings.home), settings.prefect_api_url]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=200).stdout


def deployments(api: Api) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in api.ask("POST", "/deployments/filter", {})}


def test_register_makes_pool_and_deployments_and_may_be_repeated(api: Api, settings: Settings) -> None:
    """Two times the same: one pool, one of each deployment, one schedule."""
    run_register(settings)
    first = deployments(api)
    run_register(settings)
    second = deployments(api)

    assert {each.name for each in manifest.read()} == set(first)
    assert {name: each["id"] for name, each in first.items()} == {n: e["id"] for n, e in second.items()}
    assert api.ask("GET", "/work_pools/holdfast")["type"] == "holdfast"
    resize = second["resize-standby-pool"]
    assert [each["schedule"]["cron"] for each in resize["schedules"]] == ["0 3 * * *"]
    assert resize["global_concurrency_limit"]["limit"] == 1


def test_schedules_that_people_paused_added_or_deleted_stay_so(api: Api, settings: Settings) -> None:
    """A start of the control plane registers everything again: docs/elastic-jobs.md has people add schedules."""
    run_register(settings)
    found = deployments(api)
    resize, scale = found["resize-standby-pool"], found["scale-job"]
    (nightly,) = resize["schedules"]
    paused = f"/deployments/{resize['id']}/schedules/{nightly['id']}"
    evening = {
        "schedule": {"cron": "0 20 * * *", "timezone": "Europe/Berlin"},
        "active": True,
        "parameters": {"incident": {"job": "gpt", "machines": 4}},
    }
    inspects = found["inspect-standbys"]
    (hourly,) = inspects["schedules"]
    api.ask("DELETE", f"/deployments/{inspects['id']}/schedules/{hourly['id']}")
    api.ask("PATCH", paused, {"active": False})
    api.ask("POST", f"/deployments/{scale['id']}/schedules", [evening])
    run_register(settings)
    after = deployments(api)
    assert after["inspect-standbys"]["schedules"] == []  # a person deleted it
    (nightly,) = after["resize-standby-pool"]["schedules"]
    assert (nightly["schedule"]["cron"], nightly["active"]) == ("0 3 * * *", False)
    (added,) = after["scale-job"]["schedules"]
    assert (added["schedule"]["cron"], added["schedule"]["timezone"]) == ("0 20 * * *", "Europe/Berlin")
    assert (added["active"], added["parameters"]) == (True, evening["parameters"])
    api.ask("PATCH", f"/deployments/{resize['id']}/schedules/{nightly['id']}", {"active": True})
    api.ask("DELETE", f"/deployments/{scale['id']}/schedules/{added['id']}")


@pytest.mark.thorough
def test_schedule_makes_runs(api: Api, settings: Settings) -> None:
    """The server's scheduler really turns the cron line into runs to come."""
    run_register(settings)
    resize = deployments(api)["resize-standby-pool"]["id"]
    wanted = {"deployments": {"id": {"any_": [resize]}}, "limit": 5}
    runs = wait_for("runs to come", lambda: api.ask("POST", "/flow_runs/filter", wanted))
    assert runs[0]["state"]["type"] == "SCHEDULED"


@pytest.mark.thorough
def test_absent_api_is_named(tmp_path: Path) -> None:
    """The message has the address."""
    url = f"http://127.0.0.1:{free_ports(1)}/api"
    code = (
        "import asyncio, sys; from pathlib import Path; from holdfast.settings import Settings;"
        "from holdfast.deployments.worker.register import register\n"
        "try: asyncio.run(register(Settings(home=Path(sys.argv[1]), prefect_api_url=sys.argv[2])))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    command = [sys.executable, "-c", code, str(tmp_path), url]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout
    assert output.startswith(UnavailableError.__name__)
    assert url in output


def deploy_all(api: Api, home: Path, folder: Path) -> None:
    """`prefect deploy --all` in ``folder``: needs the work pool and nothing else; a pool of type process will do."""
    env = os.environ | {"PREFECT_API_URL": api.url, "PREFECT_HOME": str(home), "DO_NOT_TRACK": "1"}
    # As if the package in the folder were installed.
    env["PYTHONPATH"] = str(folder)
    prefect = [sys.executable, "-m", "prefect", "--no-prompt"]
    if not any(pool["name"] == "holdfast" for pool in api.ask("POST", "/work_pools/filter", {})):
        create = [*prefect, "work-pool", "create", "holdfast", "--type", "process"]
        subprocess.run(create, env=env, check=True, capture_output=True, timeout=100)
    applied = subprocess.run(
        [*prefect, "deploy", "--all"],
        env=env,
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert applied.returncode == 0, applied.stdout + applied.stderr


@pytest.mark.thorough
def test_prefects_own_command_applies_the_same_file(api: Api, settings: Settings, tmp_path: Path) -> None:
    """The deployments of this repository."""
    deploy_all(api, tmp_path, ROOT)
    assert {each.name for each in manifest.read()} <= set(deployments(api))


@pytest.mark.thorough
def test_prefects_own_command_applies_playbooks_of_other_repositories(
    api: Api, settings: Settings, tmp_path: Path
) -> None:
    """The example's, and one as `holdfast new playbook` writes it: each with its flow, pool and tags."""
    playbook.write("fan_fault", tmp_path / "site-playbooks")
    for folder in (ROOT / "examples" / "playbooks", tmp_path / "site-playbooks"):
        deploy_all(api, tmp_path, folder)
    found = deployments(api)
    for name, entrypoint in {
        "thermal-throttling": "hot_gpus.thermal_throttling:thermal_throttling",
        "fan-fault": "site_playbooks.fan_fault:fan_fault",
    }.items():
        assert found[name]["entrypoint"] == entrypoint
        assert found[name]["work_pool_name"] == "holdfast"
        assert {"holdfast", "incident"} <= set(found[name]["tags"])
