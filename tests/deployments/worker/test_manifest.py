"""prefect.yaml: the one source of deployments."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from prefect.flows import Flow

from holdfast.deployments.worker import manifest
from holdfast.errors import SettingsError
from holdfast.models.alert import IncidentClass

ROOT = Path(__file__).resolve().parents[3]
DEPLOYMENTS = manifest.read()


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda each: each.name)
def test_entrypoint_is_an_async_flow_named_like_its_deployment(deployment: manifest.Deployment) -> None:
    """The gateway addresses deployments as ``name/name``."""
    module, _, name = deployment.entrypoint.partition(":")
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, Flow)
    assert found.isasync
    assert found.name == deployment.name
    assert deployment.description
    assert "holdfast" in deployment.tags


def test_every_incident_class_has_a_deployment() -> None:
    """No incident without its playbook."""
    classes = {each.value.replace("_", "-") for each in IncidentClass}
    assert classes <= {deployment.name for deployment in DEPLOYMENTS}


def test_resize_is_scheduled_daily_and_runs_once_at_a_time() -> None:
    """03:00 UTC, concurrency limit 1."""
    resize = next(each for each in DEPLOYMENTS if each.name == "resize-standby-pool")
    assert [(each.cron, each.timezone, each.active) for each in resize.schedules] == [
        ("0 3 * * *", "UTC", True)
    ]
    assert resize.concurrency_limit == 1


def test_package_reads_the_file_in_the_root_of_the_checkout() -> None:
    """`prefect deploy --all` and `holdfast up` apply the same file."""
    assert manifest.PATH.resolve() == ROOT / "prefect.yaml"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("deployments: []", "no `deployments`"),
        ("][", "prefect.yaml"),
        (
            "deployments: [{name: x, entrypoint: flows/x.py:x, work_pool: {name: p}}]",
            "deployment 'x', entrypoint",
        ),
        ("deployments: [{name: x, entrypoint: 'm:x'}]", "work_pool"),
    ],
)
def test_malformed_file_is_refused_with_the_place(tmp_path: Path, text: str, words: str) -> None:
    """The message names the file, the deployment and the field."""
    file = tmp_path / "prefect.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=r"prefect\.yaml") as raised:
        manifest.read(file)
    assert words in str(raised.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    """The message about an incomplete installation has the remedy."""
    with pytest.raises(SettingsError, match="Reinstall"):
        manifest.read(tmp_path / "prefect.yaml")
