"""The same fault on one machine after another in one slot of a job."""

from __future__ import annotations

from holdfast.policies.escalate.in_place import WINDOW_S, Forerunner, why_spared

NOW = 1e6


def went(machine: str, ago_s: float = 600.0) -> Forerunner:
    return Forerunner(incident="gpt-1", machine=machine, at=NOW - ago_s)


def test_the_third_machine_stays() -> None:
    """A second bad machine in a row happens; three do not, whatever the fault."""
    assert why_spared("m4", "nic_down", [went("m1")], NOW) == ""
    assert why_spared("m5", "nic_down", [went("m1"), went("m4")], NOW).startswith(
        "nic_down came on m1, m4 in the same place"
    )


def test_the_same_machine_twice_is_one_and_what_is_long_ago_is_none() -> None:
    """One that was released and went again is itself at fault."""
    assert why_spared("m5", "nic_down", [went("m1"), went("m1")], NOW) == ""
    assert why_spared("m1", "nic_down", [went("m1"), went("m4")], NOW) == ""
    assert why_spared("m5", "nic_down", [went("m1", WINDOW_S + 1), went("m4")], NOW) == ""
