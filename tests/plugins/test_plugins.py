"""Plugins of other packages are used; broken ones are named and left out."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import drivers, envfile, plugins
from holdfast.agent.diagnostics import plugged
from holdfast.agent.inspection.detectors import detectors
from holdfast.agent.inspection.inspector import Inspector
from holdfast.agent.inspection.roots import Roots
from holdfast.deployments.worker import manifest
from holdfast.errors import SettingsError, UnknownError
from holdfast.models.agent import Check, Command, Diagnose
from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass
from holdfast.models.job import Job, JobSpec, JobState
from holdfast.plugins import EntryPoints
from holdfast.plugins.policy import site_policy
from holdfast.policies.classify.decision import JobContext
from holdfast.policies.classify.incident_class import classify
from holdfast.settings import Settings
from tests.plugins import acme

pytestmark = pytest.mark.usefixtures("installed")


def diagnose(check: str) -> Diagnose:
    return Diagnose(job="gpt", epoch=1, incarnation="i", check=check, timeout_s=60)


def command(name: str) -> Command:
    return Command(job="gpt", epoch=1, incarnation="i", name=name, values={"rpm": 7})


def alert(check: str, machine: str = "m1") -> Alert:
    return Alert(kind=AlertKind.HOST_FAULT, machine=machine, at=99.0, evidence={"check": check})


def context(machines: int = 4) -> JobContext:
    spec = JobSpec(name="gpt", script="t.py", machines=machines, ranks_per_machine=1)
    names = tuple(f"m{n}" for n in range(machines))
    job = Job(spec=spec, state=JobState.RUNNING, epoch=1, code_version="v", machines=names, submitted_at=0)
    return JobContext(job=job, now=100.0)


def test_what_loads_is_there_and_what_is_broken_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """The error names the package and the object, and what is wrong."""
    objects, broken = plugins.load(EntryPoints.DETECTORS)
    assert list(objects) == ["fans", "no_detector", "no_device"]
    assert [plugin.name for plugin in broken] == ["no_module"]
    assert "ModuleNotFoundError" in broken[0].error
    log = caplog.text
    assert "plug-in holdfast.detectors 'no_module' of package acme-holdfast 1.2 is broken and left out" in log


async def test_a_broken_detector_does_not_keep_the_others_from_looking(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two cannot be made, one fails at its first look: the alerts of the good one arrive all the same."""
    settings = Settings(home=tmp_path)
    policy = site_policy().detect
    made, _ = detectors("m1", tmp_path, settings, policy, Roots.of(tmp_path, "m1", settings))
    names = [each.name for each in made]
    assert names.count("fans") == 1
    assert len(names) > 5
    assert "no fan controller here" in caplog.text
    assert "object has no name, interval_s, blocking, poll, inspect" in caplog.text

    fans = [each for each in made if each.name == "fans"]
    seen: asyncio.Queue[Alert] = asyncio.Queue()
    looking = asyncio.create_task(Inspector("m1", fans, policy.intervals, seen.put_nowait).run())
    try:
        found = await asyncio.wait_for(seen.get(), 60)
    finally:
        looking.cancel()
    assert found.evidence == {"check": "fans"}
    assert "fan controller busy" in caplog.text


async def test_diagnosers_are_run_by_name() -> None:
    """As a tier of a ladder."""
    (found,) = await plugged.diagnose(diagnose("fan_test"), "m1")
    assert (found.machine, found.ok, found.sure) == ("m1", False, True)


@pytest.mark.parametrize(
    ("check", "text"), [("fan_crash", "controller gone"), ("fan_lost", "acme-holdfast 1.2 is broken")]
)
async def test_a_broken_diagnoser_accuses_no_machine(check: str, text: str) -> None:
    """The finding states that it was not run, and why."""
    (found,) = await plugged.diagnose(diagnose(check), "m1")
    assert found.ok
    assert text in found.detail


async def test_an_unknown_check_is_refused_with_the_known_ones() -> None:
    """Built-in and installed."""
    with pytest.raises(SettingsError, match=r"fan_tset.*inspect.*fan_test"):
        await plugged.diagnose(diagnose("fan_tset"), "m1")


async def test_commands_are_done_by_name(tmp_path: Path) -> None:
    """With the values that the playbook gave."""
    assert await plugged.command(command("spin_up"), "m1", tmp_path) == {"machine": "m1", "rpm": 7}
    with pytest.raises(UnknownError, match=r"'spin_down'.*spin_up"):
        await plugged.command(command("spin_down"), "m1", tmp_path)
    with pytest.raises(SettingsError, match="expected a JSON object"):
        await plugged.command(command("spin_nothing"), "m1", tmp_path)


def test_drivers_are_chosen_by_name(tmp_path: Path) -> None:
    """A broken one is refused, as the site cannot do without."""
    assert drivers.from_settings(Settings(home=tmp_path, driver="acme")).name == "acme"
    with pytest.raises(SettingsError, match=r"acme_old.*acme-holdfast 1\.2 is broken: AttributeError"):
        drivers.from_settings(Settings(home=tmp_path, driver="acme_old"))
    with pytest.raises(SettingsError, match="expected one of local, slurm, kubernetes, acme"):
        drivers.from_settings(Settings(home=tmp_path, driver="amce"))


def test_a_driver_has_settings_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Chosen once at `holdfast up`, read by every later process, and refused by name."""
    site = Settings(home=tmp_path, driver="acme")
    assert drivers.from_settings(site).own.racks == 1  # type: ignore[attr-defined]
    monkeypatch.setenv("HOLDFAST_ACME_RACKS", "3")
    envfile.remember(site)
    assert "other" in caplog.text, "it has the prefix of another"
    monkeypatch.delenv("HOLDFAST_ACME_RACKS")
    assert "HOLDFAST_ACME_RACKS=3" in (tmp_path / "settings.env").read_text().splitlines()
    assert drivers.from_settings(site).own.racks == 3  # type: ignore[attr-defined]
    monkeypatch.setenv("HOLDFAST_ACME_RACKS", "0")
    with pytest.raises(SettingsError, match=r"HOLDFAST_ACME_RACKS = '0': Input should be greater"):
        envfile.remember(site)
    with pytest.raises(SettingsError, match=r"broken: SettingsError: setting HOLDFAST_ACME_RACKS = '0'"):
        drivers.from_settings(site)


def test_a_driver_whose_evictions_are_not_fenced_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start, not in the middle of a recovery; one that takes the incarnation is used."""
    made = drivers.from_settings(Settings(home=tmp_path, driver="acme"))

    def former(machine: str, scope: object, reason: str) -> None:
        raise AssertionError

    def present(machine: str, scope: object, reason: str, incarnation: str = "") -> None:
        raise AssertionError

    monkeypatch.setattr(type(made), "evict", staticmethod(former), raising=False)
    with pytest.raises(
        SettingsError, match=r"'acme'.*expected evict\(machine, scope, reason, incarnation=''\)"
    ):
        drivers.from_settings(Settings(home=tmp_path, driver="acme"))
    monkeypatch.setattr(type(made), "evict", staticmethod(present))
    assert drivers.from_settings(Settings(home=tmp_path, driver="acme")).name == "acme"


def test_the_policy_entry_comes_with_the_package() -> None:
    """Class, ladder, tiers and values."""
    policy = site_policy()
    fan_fault = IncidentClass("fan_fault")
    assert policy.ladder.of(fan_fault).tiers == (Check.INSPECT, Check("fan_test"))
    assert policy.playbooks[fan_fault].values == {"rpm": 4000}


def test_alerts_become_incidents_of_the_packages_class() -> None:
    """As its entry states."""
    decision = classify([alert("fans")], context(), site_policy())
    assert isinstance(decision, Classification)
    assert (decision.incident_class.value, decision.machine) == ("fan_fault", "m1")
    everywhere = [alert("fans", f"m{n}") for n in range(40)]
    decision = classify(everywhere, context(40), site_policy())
    assert isinstance(decision, Classification)
    assert (decision.machine, decision.confidence) == (None, 0.3)


def test_a_playbook_that_cannot_be_imported_gets_no_incidents() -> None:
    """Its alerts keep the meaning that they have without it."""
    policy = site_policy(usable=True)
    assert [name.value for name in policy.playbooks] == ["fan_fault"]
    assert not isinstance(classify([alert("no_fans")], context(), policy), Classification)
    broken = {plugin.name: plugin.error for plugin in plugins.load(EntryPoints.PLAYBOOKS)[1]}
    assert list(broken) == ["Bad-Name", "fan_flow", "fan_missing"]
    assert "expected a lower-case identifier" in broken["Bad-Name"]
    assert "is a flow, and no playbook" in broken["fan_flow"]
    assert "No module named 'acme_holdfast.nowhere'" in broken["fan_missing"]


def test_a_playbook_keeps_the_name_of_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options may change; what is wrong is named."""
    module = importlib.import_module("acme_holdfast.fan_fault")
    ours = module.fan_fault

    def error(value: object) -> str:
        monkeypatch.setattr(module, "fan_fault", value)
        return next(
            (each.error for each in plugins.load(EntryPoints.PLAYBOOKS)[1] if each.name == "fan_fault"), ""
        )

    assert not error(ours.with_options(retries=1))
    assert "a flow called 'Fan fault (site)': expected 'fan-fault'" in error(
        ours.with_options(name="Fan fault (site)")
    )
    assert "is no playbook: expected a function fan_fault" in error(lambda case: None)


def test_a_site_changes_the_entry_of_a_package(tmp_path: Path) -> None:
    """The site's file is laid over the package's."""
    path = tmp_path / "site.yaml"
    path.write_text("playbooks: {fan_fault: {values: {rpm: 1}}}\nmodes: {by_class: {fan_fault: observe}}\n")
    assert site_policy(path).playbooks[IncidentClass("fan_fault")].values == {"rpm": 1}
    path.write_text("modes: {by_class: {fan_fautl: observe}}\n")
    with pytest.raises(SettingsError, match=r"line 1.*fan_fautl"):
        site_policy(path)


def test_a_package_may_not_change_other_thresholds(installed: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its whole entry is left out, and the error names the key."""
    entry = installed / "acme_holdfast/policy.yaml"
    text = entry.read_text()
    entry.write_text(text + "breaker: {max_share: 1.0}\n")
    try:
        policy = site_policy()
    finally:
        entry.write_text(text)
    assert policy.playbooks == {}
    assert policy.breaker == site_policy().breaker
    assert "breaker is not the package's to set" in caplog.text


def test_deployments_of_playbooks_that_load_are_registered() -> None:
    """Beside those of prefect.yaml."""
    (only,) = manifest.of_packages()
    assert (only.name, only.entrypoint) == ("fan-fault", "acme_holdfast.fan_fault:fan_fault")
    assert only.description == "Recover a job whose machine has lost a fan."
    assert manifest.all_deployments()[-1] == only


def test_classes_of_the_past_stay_readable_without_their_package(site_packages: Path) -> None:
    """A process that never heard of the class reads it from a record, and refuses it from a file."""
    script = (
        "from holdfast.models.alert import Classification, IncidentClass\n"
        "try:\n    IncidentClass('fan_gone')\nexcept ValueError:\n    print('refused')\n"
        "c = Classification(incident_class='fan_gone', confidence=1, reasons=())\n"
        "print(c.incident_class is IncidentClass('fan_gone'), len(IncidentClass) < 30, c.model_dump_json())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(site_packages)},
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith('refused\nTrue True {"incident_class":"fan_gone"')


def test_two_packages_with_one_name(
    site_packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first by the package's name has it, the other is reported."""
    info = tmp_path / "zeta_holdfast-1.dist-info"
    acme.write(
        info,
        {
            "METADATA": "Metadata-Version: 2.1\nName: zeta-holdfast\nVersion: 1\n",
            "entry_points.txt": "[holdfast.commands]\nspin_up = json:loads\n",
        },
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    objects, _ = plugins.load(EntryPoints.COMMANDS)
    assert objects["spin_up"].__module__ == "acme_holdfast.fans"
    assert "zeta-holdfast 1 is broken and left out: the name 'spin_up' is taken" in caplog.text
