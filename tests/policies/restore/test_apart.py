"""Copies in other domains than their machines."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.models.job import Parallelism
from holdfast.policies.diagnose.groups import groups, slots
from holdfast.policies.restore.placement import Backup, backups

PLAIN = Parallelism()


def racks(*sizes: int) -> list[dict[str, str]]:
    """Machines of racks, one rack after the other."""
    return [{"rack": f"r{rack}"} for rack, size in enumerate(sizes) for _ in range(size)]


def shared(backup: Backup, where: list[dict[str, str]]) -> list[int]:
    """Slots whose copy is lost with some domain of theirs: counted without the code under test."""
    return [
        slot
        for slot, peer in backup.mapping.items()
        if any(where[peer].get(level) == domain for level, domain in where[slot].items())
    ]


def is_placed(backup: Backup, machines: int) -> bool:
    peers = backup.mapping
    return sorted(peers) == sorted(peers.values()) == list(range(machines)) and all(
        slot != peer for slot, peer in peers.items()
    )


@given(st.lists(st.integers(0, 4), min_size=2, max_size=24))
@settings(deadline=None)
def test_no_rack_is_lost_with_its_copies_where_none_holds_more_than_half(names: list[int]) -> None:
    """That is when it is possible; elsewhere as many as cannot be elsewhere lie in their own rack."""
    where = [{"rack": str(name)} for name in names]
    backup = backups(len(where), 2, PLAIN, where)
    assert is_placed(backup, len(where))
    largest = max(Counter(names).values())
    assert len(shared(backup, where)) == backup.in_domain == max(0, 2 * largest - len(names))


@given(
    st.lists(
        st.fixed_dictionaries(
            {}, optional={"rack": st.sampled_from("abc"), "switch": st.sampled_from("uvwx")}
        ),
        min_size=2,
        max_size=16,
    )
)
@settings(deadline=None)
def test_every_placement_is_one_and_says_what_is_shared(where: list[dict[str, str]]) -> None:
    """Several levels, and machines that nothing is known of. A domain of all counts only where no other is known."""
    backup = backups(len(where), 1, PLAIN, where)
    assert is_placed(backup, len(where))
    levels = {level for each in where for level in each}
    between = {level for level in levels if len({each.get(level) for each in where}) > 1} or levels
    counted = [{level: each[level] for level in between & each.keys()} for each in where]
    assert backup.in_domain == len(shared(backup, counted))


def test_without_known_domains_copies_lie_where_they_lay() -> None:
    assert backups(6, 8, Parallelism(tp=8, pp=2), [{}] * 6) == backups(6, 8, Parallelism(tp=8, pp=2))


@pytest.mark.parametrize("layout", [Parallelism(tp=8, pp=8), Parallelism(tp=8), PLAIN])
def test_the_design_size_in_racks(layout: Parallelism) -> None:
    """1,200 machines of 8 ranks in racks of 16."""
    where = racks(*[16] * 75)
    backup = backups(1200, 8, layout, where)
    assert is_placed(backup, 1200)
    assert not shared(backup, where)
    assert backup.crosses_groups == (layout.pp > 1)


def test_groups_are_crossed_as_well_where_both_can_be() -> None:
    """A rack goes before a parallel group; with room for both, both are crossed."""
    where, layout = racks(*[4] * 8), Parallelism(tp=8, pp=4)
    backup = backups(32, 8, layout, where)
    touched = [slots(group.ranks, 8) for group in groups(32 * 8, layout)]
    assert not shared(backup, where)
    assert not [
        slot for slot, peer in backup.mapping.items() if any({slot, peer} <= each for each in touched)
    ]


def test_one_standby_of_another_rack_moves_few_copies() -> None:
    """The copies of all others stay where they are, so that a recovery moves little."""
    where = racks(*[16] * 75)
    before = backups(1200, 8, PLAIN, where).mapping
    swapped = [*where]
    swapped[5] = dict(where[before[5]])  # the standby stands in the rack of what keeps the copy
    after = backups(1200, 8, PLAIN, swapped).mapping
    assert not shared(backups(1200, 8, PLAIN, swapped), swapped)
    assert sum(before[slot] != after[slot] for slot in before) <= 2


def test_what_all_machines_share_is_no_reason() -> None:
    """The core switch above all leaves; alone it is named."""
    where = [each | {"switch-2": "core"} for each in racks(*[4] * 4)]
    assert backups(16, 8, PLAIN, where).in_domain == 0
    assert backups(4, 8, PLAIN, [{"zone": "a"}] * 4).in_domain == 4
