"""The losses of members that each RAID level survives; real outputs are in ``tests/corpus``."""

from __future__ import annotations

import pytest

from holdfast.policies.classify.mdstat import State, arrays, detail


def mdstat(level: str, drawn: str, more: str = "") -> str:
    """One array as the kernel draws it."""
    shape = f"[{len(drawn)}/{drawn.count('U')}] [{drawn}]"
    head = f"Personalities : [{level}]\nmd0 : active {level} sdb[1] sda[0]\n"
    return f"{head}      1000 blocks super 1.2 {more} {shape}\n\n"


@pytest.mark.parametrize(
    ("level", "drawn", "more", "state"),
    [
        ("raid1", "UU", "", State.WHOLE),
        ("raid1", "U_", "", State.DEGRADED),
        ("raid1", "__", "", State.BROKEN),
        ("raid4", "UU_", "", State.DEGRADED),
        ("raid4", "U__", "", State.BROKEN),
        ("raid5", "UU_", "", State.DEGRADED),
        ("raid5", "U__", "", State.BROKEN),
        ("raid6", "UU__", "", State.DEGRADED),
        ("raid6", "U___", "", State.BROKEN),
        ("raid10", "U__U", "512K chunks 2 near-copies", State.DEGRADED),
        ("raid10", "UU__", "512K chunks 2 near-copies", State.BROKEN),
        ("raid10", "__U", "512K chunks 2 near-copies", State.DEGRADED),
        ("raid10", "UU__", "512K chunks 2 far-copies", State.DEGRADED),
        ("raid10", "____", "512K chunks 2 far-copies", State.BROKEN),
        ("raid10", "___U", "", State.DEGRADED),
        ("raid7", "___U", "", State.DEGRADED),
    ],
)
def test_a_level_survives_so_many_losses(level: str, drawn: str, more: str, state: State) -> None:
    """Where the layout is not known, nothing is reported as broken."""
    [array] = arrays(mdstat(level, drawn, more))
    assert array.state is state


def test_members_that_are_added_are_not_lost() -> None:
    """While an array grows."""
    [array] = arrays(mdstat("raid5", "UU__").rstrip() + "\n   [>...]  reshape =  0.2% (1/2) finish=1min\n")
    assert array.state is State.DEGRADED


@pytest.mark.parametrize(
    "text",
    [
        "",
        "md0 : active raid5",
        "md0 : broken raid0 sda[0]\n 1 blocks\n",
        mdstat("raid5", "UU_").replace("[3/2]", "[3/3]"),
    ],
)
def test_what_is_cut_off_or_contradicts_itself_is_not_tested(text: str) -> None:
    """Never an accusation."""
    assert arrays(text) == []


@pytest.mark.parametrize(
    ("level", "active", "shown", "state"),
    [
        ("raid5", 3, "clean, degraded", State.DEGRADED),
        ("raid5", 2, "clean, degraded", State.BROKEN),
        ("raid10", 2, "clean, degraded", State.DEGRADED),
        ("raid10", 2, "active, FAILED, Not Started", State.BROKEN),
        ("raid5", 4, "active, checking", State.WHOLE),
    ],
)
def test_mdadm_is_held_against_the_level(level: str, active: int, shown: str, state: State) -> None:
    """It may call an array degraded that has lost too much; what it calls failed is."""
    text = (
        f"/dev/md0:\n Raid Level : {level}\n Raid Devices : 4\n State : {shown}\n Active Devices : {active}\n"
    )
    found = detail(text)
    assert found is not None
    assert (found.name, found.state) == ("md0", state)
