"""An operator's files for Prometheus and Alertmanager: their own tools accept them, and every name in them exists."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.deployments.gateway.intake.alertmanager import WebhookAlert, parse
from holdfast.models.alert import AlertKind
from holdfast.models.alert_kinds.meaning import Acts
from holdfast.models.machine import MachineState
from holdfast.policies.classify.meaning import meaning
from holdfast.policies.config.policy import Policy
from holdfast.testing.gateway_kit import Kit
from tests.deployments.test_grafana import metrics

FOLDER = Path(__file__).resolve().parents[2] / "deployments" / "prometheus"
RULES = sorted((FOLDER / "rules").glob("*.yml"))
TESTS = sorted((Path(__file__).parent / "prometheus").glob("*.yaml"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files as an operator lays them out, with the secret beside them."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    (tmp_path / "holdfast-secret").write_text("s")
    return tmp_path


def run(program: str, *arguments: str | Path) -> str:
    """Output of one of their tools, which must accept the file."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(
            f"{program} is not installed (Debian: apt-get install prometheus prometheus-alertmanager)"
        )
    done = subprocess.run([found, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def rules() -> list[dict[str, Any]]:
    """Every alert rule."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def acting() -> list[dict[str, Any]]:
    """Those whose alerts go to the gateway."""
    return [rule for rule in rules() if rule["labels"].get("holdfast") == "act"]


def test_promtool_takes_the_configuration(folder: Path) -> None:
    """With its rule files and the file of the secret."""
    assert "3 rule files found" in run("promtool", "check", "config", folder / "prometheus.yml")


def test_amtool_takes_the_configuration(folder: Path) -> None:
    """And sends what acts to the gateway as well as to people, the rest to people alone."""
    path = folder / "alertmanager.yml"
    run("amtool", "check-config", path)
    route = ("config", "routes", "test", f"--config.file={path}")
    assert run("amtool", *route, "holdfast=act", "kind=xid").splitlines()[0] == "holdfast,people"
    assert run("amtool", *route, "severity=page").splitlines()[0] == "people"


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_rules_fire_for_what_they_are_for(path: Path) -> None:
    """By promtool's own unit tests."""
    assert "SUCCESS" in run("promtool", "test", "rules", path)


def test_every_rule_has_a_test() -> None:
    """In which it fires."""
    fired = {
        case["alertname"]
        for path in TESTS
        for test in yaml.safe_load(path.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert {rule["alert"] for rule in rules()} == fired


def test_rules_name_only_what_is_counted() -> None:
    """Metrics of agent and gateway as their registries have them; DCGM's as the counters' file asks for them."""
    counters = (FOLDER / "dcgm-counters.csv").read_text()
    dcgm = set(re.findall(r"^(DCGM_\w+),", counters, re.MULTILINE))
    known = metrics().keys() | dcgm
    for rule in rules():
        named = re.findall(r"\b(?:holdfast_|DCGM_FI_)\w+", rule["expr"])
        assert set(named) <= known, rule["alert"]
        assert named or "up{" in rule["expr"], rule["alert"]


@pytest.mark.parametrize("rule", acting(), ids=lambda rule: rule["alert"])
def test_rules_that_act_are_understood(rule: dict[str, Any]) -> None:
    """Their labels make an alert of a kind that may act, of one machine in its present life."""
    labels = {"alertname": rule["alert"], "machine": "m1", "incarnation": "i1"} | rule["labels"]
    labels = {name: value.replace("{{ $value }}", "79") for name, value in labels.items()}
    assert "by (machine, incarnation" in rule["expr"]
    found = parse(
        WebhookAlert(status="firing", labels=labels, annotations=rule["annotations"]), "firing", 1.0
    )
    assert found.kind is AlertKind(rule["labels"]["kind"])
    assert (found.job, found.machine, found.incarnation) == (None, "m1", "i1")
    assert found.evidence["detail"]
    assert meaning(found, Policy.load().classify).acts is not Acts.NEVER


async def test_targets_are_the_agents_in_service(kit: Kit) -> None:
    """Evicted machines are left alone; a new life of a machine is a new target."""
    for name in ("m0", "m1"):
        await kit.register(name)
    kit.ledger.set_machine("m1", state=MachineState.CORDONED)
    await kit.gateway.site.refresh()
    found = await kit.get("/v1/targets")
    assert found == [{"targets": ["m0:1"], "labels": {"machine": "m0", "incarnation": "i1"}}]
    await kit.register("m0", "i2")
    (again,) = await kit.get("/v1/targets")
    assert again["labels"] == {"machine": "m0", "incarnation": "i2"}
