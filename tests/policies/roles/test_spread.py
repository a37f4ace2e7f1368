"""Replicas spread over failure domains: best effort, or no two in one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from holdfast.models.role_rules import no_room
from holdfast.models.roles import PlacesOfJob, RoleSpec
from holdfast.policies.roles.decide import RoleFacts, decide
from holdfast.policies.roles.placement import RolePlaces, place

RACKS = st.lists(st.sampled_from(["r1", "r2", "r3", ""]), min_size=1, max_size=9)
"""Of the machines m0, m1, ...; empty: not known."""


def machines_in(racks: list[str]) -> tuple[list[str], dict[str, str]]:
    names = [f"m{number}" for number in range(len(racks))]
    return names, {name: rack for name, rack in zip(names, racks, strict=True) if rack}


def by_domain(placed: RolePlaces, racks: dict[str, str]) -> Counter[str]:
    return Counter(racks.get(each.machine, each.machine) for each in placed.places)


@given(RACKS, st.integers(0, 12), st.integers(0, 3))
def test_required_keeps_any_two_apart(racks: list[str], replicas: int, most: int) -> None:
    """As many are placed as there are domains, at most; the others wait."""
    names, where = machines_in(racks)
    role = RoleSpec(script="r.py", replicas=replicas, machines=most, spread="rack", spread_required=True)
    placed = place("r", role, names, (), {}, 1, domains=where)
    domains = {where.get(name, name) for name in names}
    assert max(by_domain(placed, where).values(), default=0) <= 1
    assert len(placed.places) == min(replicas, len(domains), most or replicas)
    assert len(placed.unplaced) == replicas - len(placed.places)


@given(RACKS, st.integers(0, 12))
def test_best_effort_fills_domains_alike(racks: list[str], replicas: int) -> None:
    """All are placed; no domain has two more than another, whatever its size, nor any machine of it."""
    names, where = machines_in(racks)
    role = RoleSpec(script="r.py", replicas=replicas, spread="rack")
    placed = place("r", role, names, (), {}, 1, domains=where)
    assert not placed.unplaced
    used = by_domain(placed, where)
    counts = [used[where.get(name, name)] for name in names]
    assert max(counts) - min(counts) <= 1
    on = Counter(each.machine for each in placed.places)
    for name in names:
        for other in names:
            if where.get(name, name) == where.get(other, other):
                assert on[name] - on[other] <= 1


@given(RACKS, st.integers(1, 6), st.data(), st.booleans())
def test_only_those_that_lost_their_machine_move(
    racks: list[str], replicas: int, draw: st.DataObject, required: bool
) -> None:
    """Also where the new place is worse than all could have together."""
    names, where = machines_in(racks)
    role = RoleSpec(script="r.py", replicas=replicas, spread="rack", spread_required=required)
    before = place("r", role, names, (), {}, 1, domains=where)
    left = draw.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    generations = {each.index: each.generation for each in before.places}
    after = place("r", role, left, before.places, generations, 1, domains=where)
    assert {each for each in before.places if each.machine in left} <= set(after.places)
    assert not required or max(by_domain(after, where).values(), default=0) <= 1


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(0, 10), st.integers(0, 3))
def test_without_spread_domains_change_nothing(others: list[int], replicas: int, limit: int) -> None:
    """Nor does a machine level that is not required: each machine is a domain."""
    names = [f"m{number}" for number in range(len(others))]
    load = dict(zip(names, others, strict=True))
    role = RoleSpec(script="r.py", replicas=replicas, per_machine=limit)
    plain = place("r", role, names, (), {}, 1, load)
    assert place("r", role, names, (), {}, 1, load, domains=dict.fromkeys(names, "r1")) == plain
    machine = role.model_copy(update={"spread": "machine"})
    assert place("r", machine, names, (), {}, 1, load) == plain


def test_a_replica_that_failed_somewhere_leaves_its_domain_free() -> None:
    """It may be tried on another machine of the same."""
    where = {"m0": "r1", "m1": "r1", "m2": "r2"}
    role = RoleSpec(script="r.py", replicas=1, spread="rack", spread_required=True)
    (first,) = place("r", role, sorted(where), (), {}, 1, domains=where).places
    failed = first.model_copy(update={"tried": (first.machine,)})
    (second,) = place("r", role, sorted(where), [failed], {0: 1}, 1, domains=where).places
    assert (first.machine, second.machine) == ("m0", "m1")


def test_the_decision_goes_by_what_is_known_of_machines() -> None:
    """At the level that the role names."""
    role = RoleSpec(script="r.py", replicas=3, spread="switch", spread_required=True)
    where = {"m0": {"switch": "s1", "rack": "r"}, "m1": {"switch": "s1"}, "m2": {"switch": "s2", "rack": "r"}}
    facts = RoleFacts({"r": role}, ["m0", "m1", "m2"], 1, {}, True, 0.0, locations=where)
    decided = decide(facts, PlacesOfJob())
    assert [each.machine for each in decided.places.places] == ["m0", "m2"]
    assert decided.unplaced == {"r": (2,)}


def test_what_cannot_be_is_refused() -> None:
    """A rule without a level, and more replicas than machines where no two may share one."""
    with pytest.raises(ValidationError, match="spread_required: expected a level in `spread`"):
        RoleSpec(script="r.py", spread_required=True)
    apart = RoleSpec(script="r.py", replicas=3, spread="machine", spread_required=True)
    assert "no two of them may share a machine (spread_required), and there are 2" in no_room({"r": apart}, 2)
    assert not no_room({"r": apart}, 3)
    assert "there are 2" in no_room({"r": apart.model_copy(update={"own_machines": 2})}, 8)
