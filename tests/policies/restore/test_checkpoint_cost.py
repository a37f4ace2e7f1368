"""The cost and the protection of checkpoint choices, and those that a job file may not combine."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from holdfast.models.checkpoint import Copies, FirstTier, Tier
from holdfast.models.job import CheckpointPolicy, JobSpec
from holdfast.policies.restore.checkpoint_cost import Cost, cost


def costs(machines: int = 2, **choices: Any) -> Cost:
    spec = JobSpec(
        name="gpt",
        script="train.py",
        machines=machines,
        ranks_per_machine=8,
        checkpoint=CheckpointPolicy(**choices),
    )
    return cost(spec, crosses_groups=True, rank_nbytes=10)


@pytest.mark.parametrize(
    ("machines", "choices", "expected"),
    [
        (2, {}, Copies(own=2, peer=2, uploads=1)),
        (2, {"peer_buffers": 1}, Copies(own=2, peer=1, uploads=1)),
        (2, {"buffers": 1}, Copies(own=1, peer=2, uploads=0.5)),
        (2, {"buffers": 1, "peer_buffers": 1, "disk_every_steps": 10}, Copies(own=1, peer=1, uploads=0.5)),
        (2, {"peer": False}, Copies(own=2, peer=0, uploads=1)),
        (1, {}, Copies(own=2, peer=0, uploads=1)),
        (2, {"disk_every_steps": 10}, Copies(own=2, peer=2, uploads=1, disk=1)),
    ],
)
def test_copies_follow_from_the_choices(machines: int, choices: dict[str, Any], expected: Copies) -> None:
    """At rest and at the peak, per rank and for the whole machine."""
    found = costs(machines, **choices)
    assert found.copies == expected
    assert found.sums()["machine_nbytes_at_rest"] == (expected.own + expected.peer) * 8 * 10
    assert found.sums()["machine_nbytes_at_peak"] == expected.at_peak * 8 * 10


def test_bytes_are_unknown_before_the_first_save() -> None:
    """Copies are shown all the same."""
    spec = JobSpec(name="gpt", script="train.py", machines=2, ranks_per_machine=8)
    sums = cost(spec, crosses_groups=False).sums()
    assert (sums["copies_at_rest"], sums["machine_nbytes_at_rest"]) == (4, None)


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        ({}, "A machine and the one that keeps its copies"),
        ({"peer": False}, "A lost machine"),
        ({"peer_buffers": 1}, "the peer's only copy is incomplete, and the job goes back to S3"),
        ({"peer_buffers": 1, "disk_every_steps": 20}, "goes back to the disks, or to S3"),
        ({"buffers": 1}, "until they have the one before"),
        ({"memory_every_steps": 4}, "costs up to 3 steps"),
        ({}, "A reboot or power cut of all machines"),
        ({"first_tier": FirstTier.DISK}, "refused by its digest"),
    ],
)
def test_what_a_choice_does_not_protect_against_is_listed(choices: dict[str, Any], text: str) -> None:
    """In words that name the fault and what it costs."""
    assert any(text in line for line in costs(**choices).not_protected)


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        ({}, "under way"),
        ({"disk_every_steps": 20}, "A reboot"),
        ({"first_tier": "disk"}, "A reboot"),
        ({}, "costs up to"),
    ],
)
def test_what_it_does_protect_against_is_not_listed(choices: dict[str, Any], text: str) -> None:
    """The list stays short enough to be read."""
    assert not any(text in line for line in costs(**choices).not_protected)


def test_every_tier_that_is_on_has_a_row() -> None:
    """In the order in which a restore asks them."""
    assert [each.tier for each in costs().tiers] == [Tier.MEMORY, Tier.PEER, Tier.S3]
    assert [each.tier for each in costs(machines=1, disk_every_steps=2).tiers] == [
        Tier.MEMORY,
        Tier.DISK,
        Tier.S3,
    ]


@pytest.mark.parametrize("field", ["s3_every_steps", "disk_every_steps"])
def test_only_saved_steps_go_on_from_memory(field: str) -> None:
    """The error names the fields, their values, and values that would do."""
    good = {"s3_every_steps": 12, "disk_every_steps": 0, "memory_every_steps": 4}
    CheckpointPolicy(**good)
    with pytest.raises(ValidationError, match=rf"{field} = 10 .*memory_every_steps = 4.* Take 8 or 12"):
        CheckpointPolicy(**(good | {field: 10}))


def test_a_single_buffer_needs_a_copy_elsewhere() -> None:
    """Without a peer nothing would hold the state while it is saved: the refusal names the setting."""
    with pytest.raises(
        ValidationError, match=r"checkpoint.buffers = 1 with checkpoint.peer = false.*Set peer: true"
    ):
        costs(buffers=1, peer=False)
    with pytest.raises(ValidationError, match=r"checkpoint.buffers = 1 with machines = 1.*Set buffers: 2"):
        costs(machines=1, buffers=1)
