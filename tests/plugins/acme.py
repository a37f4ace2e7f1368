"""A package of another author, some of it broken; built and installed by pip into a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "acme-holdfast"
version = "1.2"

[project.entry-points."holdfast.detectors"]
fans = "acme_holdfast.fans:Fans"
no_module = "acme_holdfast.nowhere:Detector"
no_device = "acme_holdfast.fans:no_device"
no_detector = "acme_holdfast.fans:not_a_detector"

[project.entry-points."holdfast.diagnosers"]
fan_test = "acme_holdfast.fans:fan_test"
fan_crash = "acme_holdfast.fans:fan_crash"
fan_lost = "acme_holdfast.nowhere:fan_lost"
inspect = "acme_holdfast.fans:fan_test"

[project.entry-points."holdfast.commands"]
spin_up = "acme_holdfast.fans:spin_up"
spin_nothing = "acme_holdfast.fans:spin_nothing"

[project.entry-points."holdfast.drivers"]
acme = "acme_holdfast.driver:AcmeDriver"
acme_old = "acme_holdfast.driver:gone"

[project.entry-points."holdfast.settings"]
acme = "acme_holdfast.driver:AcmeSettings"
other = "acme_holdfast.driver:AcmeSettings"

[project.entry-points."holdfast.playbooks"]
fan_fault = "acme_holdfast.fan_fault:fan_fault"
fan_flow = "acme_holdfast.fan_fault:fan_flow"
fan_missing = "acme_holdfast.nowhere:fan_missing"
"Bad-Name" = "acme_holdfast.fan_fault:fan_fault"

[tool.setuptools.package-data]
acme_holdfast = ["*.yaml"]
"""

FILES = {
    "pyproject.toml": PYPROJECT,
    "acme_holdfast/__init__.py": "",
    "acme_holdfast/policy.yaml": """\
ladder:
  classes:
    fan_fault:
      tiers: [inspect, fan_test]
      rungs: [retry]
      end: human
      scope: cluster
    fan_missing: {tiers: [], rungs: [], end: human, scope: job}
playbooks:
  fan_fault:
    when:
      - {kind: host_fault, evidence: {check: fans}}
    values: {rpm: 4000}
  fan_missing:
    when:
      - {kind: host_fault, evidence: {check: no_fans}}
""",
    "acme_holdfast/fans.py": """\
from holdfast.models.alert import Alert, AlertKind, Finding


class Fans:
    name, interval_s, blocking = "fans", 0.05, False

    def __init__(self, machine, home, settings):
        self.machine, self.polls = machine, 0

    def poll(self):
        self.polls += 1
        if self.polls == 1:
            raise OSError("fan controller busy")
        return [Alert(kind=AlertKind.HOST_FAULT, machine=self.machine, at=1.0, evidence={"check": "fans"})]

    def inspect(self):
        return [Finding(check="fans", machine=self.machine, ok=True)]


def no_device(machine, home, settings):
    raise RuntimeError("no fan controller here")


def not_a_detector(machine, home, settings):
    return object()


def fan_test(machine, command):
    return [Finding(check="fan_test", machine=machine, ok=False, sure=True, detail="stands still")]


def fan_crash(machine, command):
    raise OSError("controller gone")


def spin_up(machine, home, values):
    return {"machine": machine, "rpm": values["rpm"]}


def spin_nothing(machine, home, values):
    return None
""",
    "acme_holdfast/driver.py": """\
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from holdfast.settings import FromEnvironment, read


class AcmeSettings(FromEnvironment):
    model_config = SettingsConfigDict(env_prefix="HOLDFAST_ACME_")

    racks: int = Field(1, ge=1, description="Racks that machines are taken from.")


class AcmeDriver:
    name = "acme"

    def __init__(self, settings):
        self.settings = settings
        self.own = read(AcmeSettings, settings.home)
""",
    "acme_holdfast/fan_fault.py": '''\
from prefect import flow

from holdfast.tasks.case import Case
from holdfast.tasks.evict import evict
from holdfast.tasks.pause import pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.resume import resume
from holdfast.tasks.standby import swap_in


@playbook(would="evict the machine whose fan stands still")
async def fan_fault(case: Case) -> Recovered:
    """Recover a job whose machine has lost a fan."""
    await pause(case)
    await evict(case, case.accused, "fan stands still")
    await swap_in(case)
    resumed = await resume(case)
    return Recovered(summary=resumed.summary)


@flow
async def fan_flow(incident: dict) -> None:
    """Recover nothing: it never takes its incident up."""
''',
}


def write(folder: Path, files: dict[str, str]) -> Path:
    """``files`` in ``folder``."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def install(source: Path, target: Path) -> None:
    """Install a source folder as `pip install --no-deps --target` does."""
    isolation = ["--no-build-isolation"] if _has_setuptools() else []
    options = ["--no-deps", *isolation, "--disable-pip-version-check", "--quiet", "--target", str(target)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(source)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _has_setuptools() -> bool:
    probe = "import setuptools; raise SystemExit(int(setuptools.__version__.split('.')[0]) < 77)"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode == 0
