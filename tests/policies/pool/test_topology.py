"""The failure domains of a machine, and the nearest standby."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from holdfast.models.machine import Machine, MachineState
from holdfast.policies.config.policy import Policy
from holdfast.policies.config.topology import TopologyPolicy
from holdfast.policies.pool import topology


def policy(domains: dict[str, Any], switches: dict[str, Any] | None = None) -> Policy:
    known = Policy.load()
    network = known.detect.network.model_copy(update={"switches": switches or {}})
    return known.model_copy(
        update={
            "topology": TopologyPolicy.model_validate({"domains": domains}),
            "detect": known.detect.model_copy(update={"network": network}),
        }
    )


def standby(name: str, **location: str) -> Machine:
    return Machine(name=name, state=MachineState.STANDBY, location=location)


def test_the_policy_files_patterns_go_before_the_agents_report() -> None:
    """Level by level; switches of the network's section are a level of their own."""
    rules = policy({"rack": {"r1": ["a*"], "r2": ["b*"]}}, {"leaf-1": ["a1"]})
    assert topology.locate("a1", {"rack": "r9", "nvlink": "n1"}, rules) == {
        "rack": "r1",
        "nvlink": "n1",
        "switch": "leaf-1",
    }
    assert topology.locate("c1", {"rack": "r9"}, rules) == {"rack": "r9"}


def test_standbys_that_share_most_come_first() -> None:
    """Equally near ones keep their order; so do all where nothing is known."""
    rules = policy({"rack": {"r1": ["a*"], "r2": ["b*"]}})
    here = standby("a1", nvlink="n1")
    standbys = [standby("b1"), standby("a2"), standby("b2", nvlink="n1"), standby("a3", nvlink="n1")]
    assert topology.nearest_first(here, standbys, rules) == ["a3", "a2", "b2", "b1"]
    assert topology.nearest_first(standby("z"), standbys, rules) == ["b1", "a2", "b2", "a3"]


@pytest.mark.parametrize(
    ("domains", "says"),
    [({"rack": {"r1": []}}, "rack r1 names no machine"), ({"Rack": {"r1": ["a"]}}, "Rack")],
)
def test_a_section_that_cannot_be_meant_is_refused(domains: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        TopologyPolicy.model_validate({"domains": domains})
