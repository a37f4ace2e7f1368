"""Locations of machines, as sites and Slurm state them."""

from __future__ import annotations

import pytest

from holdfast.models import location


def test_a_site_states_levels() -> None:
    assert location.parse(" nvlink=n7, switch=leaf-3 ,rack=r12,") == {
        "nvlink": "n7",
        "switch": "leaf-3",
        "rack": "r12",
    }
    assert location.parse("") == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rack", "'rack' is not level=domain"),
        ("rack=a,rack=b", "names level 'rack' twice"),
        ("Rack=a", "Rack"),
        ("rack=", "rack"),
        ("rack=../x y", "rack"),
        (",".join(f"l{n}=a" for n in range(9)), "8"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        location.parse(text)


@pytest.mark.parametrize(
    ("address", "pattern", "found"),
    [
        # The example of Slurm's manual page of sbatch, "SLURM_TOPOLOGY_ADDR".
        (
            "s0.s26.s28.n0",
            "switch.switch.switch.node",
            {"switch": "s28", "switch-2": "s26", "switch-3": "s0"},
        ),
        ("node1", "node", {}),
        ("s0.node.example.org", "switch.node", {}),
        ("", "", {}),
        ("s 0.n0", "switch.node", {}),
    ],
)
def test_slurm_names_the_switches_above_a_node(address: str, pattern: str, found: dict[str, str]) -> None:
    assert location.of_slurm(address, pattern) == found


def test_a_site_goes_before_slurm() -> None:
    environ = {"SLURM_TOPOLOGY_ADDR": "s0.n0", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.node"}
    assert location.of_machine("rack=r1,switch=leaf-3", environ) == {"switch": "leaf-3", "rack": "r1"}
    assert location.of_machine("", environ) == {"switch": "s0"}
