"""Switches that explain lost networks, among as many switches and machines as a large fleet has."""

from __future__ import annotations

import time

from holdfast.policies.config.policy import Policy
from holdfast.policies.detect.switches import suspected

SWITCHES = 150
PER = 8
MACHINES = [f"node-{number:04d}" for number in range(SWITCHES * PER)]
LIMITS = Policy.load().detect.network.model_copy(
    update={
        "switches": {f"leaf-{s:03d}": tuple(MACHINES[s * PER : (s + 1) * PER]) for s in range(SWITCHES)},
        "switch_machines": 2,
        "switch_share": 0.5,
    }
)


def test_switches_of_a_large_fleet_are_judged_in_a_moment() -> None:
    """The gateway answers no heartbeat meanwhile; each machine was looked for below each switch, for minutes."""
    lost = [*MACHINES[: PER // 2], MACHINES[3 * PER]]
    began = time.process_time()
    assert suspected(lost, MACHINES, LIMITS) == {"leaf-000": MACHINES[: PER // 2]}
    assert suspected([], MACHINES, LIMITS) == {}
    assert time.process_time() - began < 10.0
