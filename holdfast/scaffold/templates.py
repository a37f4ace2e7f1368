"""Templates of a new playbook. ``$name``, ``$flow``, ``$package``, ``$project`` and ``$words`` are filled in."""

from __future__ import annotations

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$project"
version = "0.1.0"
description = "Playbooks for Holdfast"
requires-python = ">=3.11"
dependencies = ["holdfast[control]"]

[project.entry-points."holdfast.playbooks"]
$name = "$package.$name:$name"

[tool.setuptools.packages.find]
include = ["$package", "$package.*"]

[tool.setuptools.package-data]
$package = ["policy.yaml"]

[tool.ruff]
line-length = 110

[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["."]
"""

FLOW = '''\
"""Playbook: $words.

Stop the job, look for the machine at fault, evict it, swap in a standby, go on.
"""

from holdfast.tasks.diagnose import diagnose
from holdfast.tasks.evict import evict
from holdfast.tasks.pause import pause
from holdfast.tasks.playbook import Recovered, playbook
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.resume import resume
from holdfast.tasks.standby import replenish, swap_in


@playbook(would="stop the job, diagnose, and evict the machine at fault")
async def $name(case: RecoveryContext) -> Recovered:
    """Recover a job after: $words."""
    await pause(case)
    verdict = await diagnose(case)
    gone = verdict.suspects or case.accused
    await evict(case, gone, "$words")
    await swap_in(case)
    resumed = await resume(case)
    await replenish(case)
    return Recovered(summary=f"{', '.join(gone) or 'no machine'} evicted; {resumed.summary}", verdict=verdict)
'''

POLICY = """\
# What Holdfast has to know of these playbooks. A site's own policy file is laid over it.
ladder:
  classes:
    # How it is diagnosed, and where it ends: see docs/policy-file.md of Holdfast.
    $name:
      tiers: [inspect]
      rungs: []
      end: human
      scope: cluster
playbooks:
  $name:
    when: # alerts that mean this class
      - {kind: host_fault, evidence: {check: $name}}
    values: {} # what the playbook reads as case.values
"""

PREFECT = """\
# Deployments of these playbooks. `holdfast up` applies them by itself; for any other Prefect server:
# `prefect --no-prompt deploy --all`.
name: $project
build: null
push: null
pull: []

deployments:
  - name: $flow
    entrypoint: $package.$name:$name
    description: Recover a job after $words.
    work_pool: {name: holdfast}
    tags: [holdfast, incident]
    parameters: {incident: {}}
"""

SCENARIOS = """\
# Played by test_$name.py. The format: docs/writing-a-playbook.md of Holdfast.
- name: $flow-evicts-the-machine
  signals:
    - {kind: host_fault, machine: m1, evidence: {check: $name}}
  expect:
    class: $name
    culprits: [m1]
    actions: [pause, "check:inspect", evict, swap, start, verify, replenish]

- name: $flow-resolved-does-nothing
  signals:
    - {kind: host_fault, machine: m1, firing: false, evidence: {check: $name}}
"""

TEST = '''\
"""The playbook $name on a scripted cluster."""

from pathlib import Path

import pytest
from holdfast.testing import Scenario, check, load

from $package.$name import $name

SCENARIOS = load(Path(__file__).with_name("$name.yaml"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_scenario(scenario: Scenario, tmp_path: Path) -> None:
    """The expected class, culprits and actions, and nothing else."""
    check(scenario, tmp_path, [$name])
'''
