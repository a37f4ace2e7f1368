"""The work pool for Prefect's Kubernetes worker: its template renders to a job that Kubernetes takes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.utilities.schema_tools import is_valid_schema, validate
from prefect.utilities.templating import apply_values, find_placeholders

from holdfast import secret, settings, tls
from holdfast.settings_table import variables
from tests.certificates import Authority

PATH = Path(__file__).resolve().parents[2] / "deployments/prefect/kubernetes-pool.json"
SECRETS = "/etc/holdfast/secrets"


@pytest.fixture
def template() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PATH.read_text())
    return found


def defaults(template: dict[str, Any]) -> dict[str, Any]:
    known = template["variables"]["properties"]
    return {name: field["default"] for name, field in known.items() if "default" in field}


def rendered(template: dict[str, Any], **values: Any) -> dict[str, Any]:
    """The job, as the worker renders it before it fills in the run's own variables and command."""
    given = defaults(template) | values
    configuration: dict[str, Any] = apply_values(template["job_configuration"], given)
    job: dict[str, Any] = configuration["job_manifest"]
    container = job["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": name, "value": value} for name, value in container["env"].items()]
    container["args"] = ["prefect", "flow-run", "execute"]
    return job


def test_variables_and_placeholders_fit(template: dict[str, Any]) -> None:
    """Every placeholder has a variable, every variable a place, and the defaults are valid."""
    used = {found.name for found in find_placeholders(template["job_configuration"])}
    assert used == set(template["variables"]["properties"])
    is_valid_schema(template["variables"], preprocess=False)
    assert not validate(defaults(template), template["variables"], raise_on_error=False, preprocess=False)


def test_secrets_are_mounted_and_never_in_the_environment(template: dict[str, Any]) -> None:
    """Job variables and pods' environments are shown in UIs."""
    pod = rendered(template)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {SECRETS, "/var/lib/holdfast"}
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["HOLDFAST_SECRETS_DIR"] == SECRETS
    assert environment["HOLDFAST_SECRET_FILE"].startswith(SECRETS)
    assert not any("secretKeyRef" in json.dumps(each) for each in container["env"])
    (volume,) = [each for each in pod["volumes"] if "secret" in each]
    # Read by the pod's group: the mode that `holdfast.secret` takes of a file that is another user's.
    assert oct(volume["secret"]["defaultMode"]) == "0o440"
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsUser"] == 1000


@pytest.mark.parametrize("version", ["1.28", "1.34"])
def test_kubernetes_takes_the_job(template: dict[str, Any], version: str) -> None:
    """By the published schemas, strictly: no unknown field."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kubernetes_validate.validate(rendered(template, namespace="training"), version, strict=True)


def documented() -> tuple[dict[str, str], list[str]]:
    """The config map and the files of the secret that the docs make."""
    text = (PATH.parents[2] / "docs" / "team-prefect.md").read_text()
    config_map = dict(re.findall(r"--from-literal=(\w+)=(\S+)", text))
    return config_map, re.findall(r"--from-file=(\S+)", text)


def test_settings_of_the_pod_are_the_sites(
    template: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the environment of the template and the docs' config map and secret: ledger, secret, S3 key, authority."""
    authority = Authority(tmp_path / "pki")
    content = {
        "secret": "hunter-shared",
        "holdfast_database_url": "postgresql+psycopg://holdfast@db.example/holdfast",
        "holdfast_s3_secret_key": "hunter-s3",
        "ca.crt": authority.pem.decode(),
    }
    config_map, files = documented()
    assert set(files) == set(content)
    mounted = tmp_path / "secrets"
    mounted.mkdir()
    for name in files:
        (mounted / name).write_text(content[name])
        (mounted / name).chmod(0o400)
    container = rendered(template)["spec"]["template"]["spec"]["containers"][0]
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    given = config_map | {each["name"]: each["value"] for each in container["env"]}
    for name, value in given.items():
        assert name in variables(), name
        monkeypatch.setenv(name, value.replace(SECRETS, str(mounted)))
    found = settings.load(tmp_path)
    assert found.database == content["holdfast_database_url"]
    assert found.s3_secret_key.get_secret_value() == "hunter-s3"
    assert secret.of(found).current == "hunter-shared"
    assert found.driver == "kubernetes"
    certified = tls.of(found)
    assert certified.scheme == "https"
    assert certified.server() is None, "a playbook serves nothing"
    assert certified.agent_name("10.0.0.7") == "agent.holdfast"


def test_docs_give_the_pod_what_the_control_plane_is_given() -> None:
    """Playbooks ask the driver for machines: of the same number, with the same priorities."""
    base = PATH.parents[1] / "kubernetes" / "base"
    [control] = [
        each
        for each in yaml.safe_load_all((base / "control.yaml").read_text())
        if each["kind"] == "Deployment"
    ]
    env = control["spec"]["template"]["spec"]["containers"][0]["env"]
    given = {each["name"]: each.get("value") for each in env if "KUBERNETES" in each["name"]}
    config_map, _ = documented()
    assert {name for name in config_map if "KUBERNETES" in name} == set(given)
    classes = {name: value for name, value in given.items() if name.endswith("_CLASS")}
    assert {name: config_map[name] for name in classes} == classes
