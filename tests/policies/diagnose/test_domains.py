"""Machines of one switch whose transfers are bad together: the switch is suspected, and none of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import Finding
from holdfast.models.machine import Machine, MachineState
from holdfast.policies.config.policy import Policy
from holdfast.policies.diagnose import domains
from holdfast.policies.diagnose.pairing import neighbours
from holdfast.policies.diagnose.verdicts import judge

LEAVES = {
    "switch leaf-1": frozenset({"m0", "m1"}),
    "switch leaf-2": frozenset({"m2", "m3"}),
    "switch leaf-3": frozenset({"m4", "m5", "m6", "m7"}),
}


def ring(machines: int, bad: set[str], *, fails: bool = False) -> list[Finding]:
    """An all-gather between neighbours; what touches a bad machine is slow, or fails."""
    found = []
    for pair in neighbours([f"m{at}" for at in range(machines)]):
        hit = bool(set(pair) & bad)
        for one, other in (pair, pair[::-1]):
            known = {"check": "all_gather", "machine": one, "peer": other}
            if hit and fails:
                found.append(Finding(**known, ok=False, detail="timed out"))
            else:
                found.append(
                    Finding(
                        **known, ok=True, value=2.0 if hit else 900.0, unit="MB/s", repeats=3, kind="gloo"
                    )
                )
    return found


def test_a_slow_switch_is_suspected_and_none_of_its_machines() -> None:
    """Without the domains both would go, one after the other or together."""
    findings = ring(8, {"m2", "m3"})
    assert judge(findings, 1.5).suspects == ("m2", "m3")
    verdict = judge(findings, 1.5, shared=LEAVES)
    assert (verdict.suspects, verdict.shared) == ((), ("switch leaf-2",))
    assert "transfers of m2, m3 fail or are slow, and they share switch leaf-2" in verdict.evidence[0]


def test_a_switch_whose_machines_fail_is_suspected_too() -> None:
    """Also against machines that were proved good."""
    pairs = [("m2", "m0"), ("m2", "m5"), ("m3", "m1"), ("m3", "m6")]
    again = [
        Finding(check="all_gather", machine=one, peer=other, ok=False)
        for pair in pairs
        for one, other in (pair, pair[::-1])
    ]
    findings = [*ring(8, {"m2", "m3"}, fails=True), *again]
    assert judge(findings).suspects == ("m2", "m3")
    verdict = judge(findings, shared=LEAVES)
    assert (verdict.suspects, verdict.shared) == ((), ("switch leaf-2",))


@pytest.mark.parametrize("repeats", [3, 1])
def test_half_of_the_job_behind_a_slow_switch_is_named_as_well(repeats: int) -> None:
    """So many that no machine would be named for its pace; also where a transfer took so long that one was enough."""
    leaves = {"rack a": frozenset({"m0", "m1"}), "rack b": frozenset({"m2", "m3"})}
    findings = [each.model_copy(update={"repeats": repeats}) for each in ring(4, {"m2", "m3"})]
    verdict = judge(findings, 1.5, shared=leaves)
    assert (verdict.suspects, verdict.shared) == ((), ("rack b",))


def test_a_neighbour_whose_good_link_was_a_little_slow_makes_no_switch() -> None:
    """As measured: m2 is slow with both of its neighbours; links of the others differ by the load of a host."""
    paces = {
        ("m0", "m1"): (265.8, 544.3),
        ("m1", "m2"): (0.091, 0.146),
        ("m2", "m3"): (0.062, 0.075),
        ("m3", "m0"): (240.3, 217.5),
    }
    findings = [
        Finding(
            check="all_gather",
            machine=one,
            peer=other,
            ok=True,
            value=value,
            unit="MB/s",
            repeats=3,
            kind="gloo",
        )
        for pair, values in paces.items()
        for (one, other), value in zip((pair, pair[::-1]), values, strict=True)
    ]
    leaves = {"switch leaf-1": frozenset({"m0", "m1"}), "switch leaf-2": frozenset({"m2", "m3"})}
    verdict = judge(findings, 1.5, shared=leaves)
    assert (verdict.suspects, verdict.shared) == (("m2",), ())


@pytest.mark.parametrize("fails", [False, True])
def test_one_bad_machine_of_a_switch_is_named(fails: bool) -> None:
    """Its neighbours pass with others."""
    verdict = judge(ring(8, {"m5"}, fails=fails), 1.5, shared=LEAVES)
    assert (verdict.suspects, verdict.shared) == (("m5",), ())


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("bad", "suspects"), [({"m5", "m6"}, ("m5", "m6")), ({"m5", "m6", "m7"}, ())])
def test_a_switch_is_not_suspected_when_as_many_of_its_machines_pass(
    fails: bool, bad: set[str], suspects: tuple[str, ...]
) -> None:
    """Half of them are well connected through it: the others are bad themselves. One of four may be lucky."""
    again = [
        Finding(check="all_gather", machine=one, peer=other, ok=False)
        for name in sorted(bad)
        for pair in ((name, "m0"), (name, "m1"))
        for one, other in (pair, pair[::-1])
    ]
    findings = [*ring(12, bad, fails=fails), *(again if fails else [])]
    verdict = judge(findings, None if fails else 1.5, shared=LEAVES)
    assert verdict.suspects == suspects
    assert verdict.shared == (() if suspects else ("switch leaf-3",))


def test_machines_that_were_not_tested_say_nothing_for_their_switch() -> None:
    """Two of four are bad with all others, and nothing is known of the other two."""
    findings = [each for each in ring(12, {"m5", "m6"}) if not {each.machine, each.peer} & {"m4", "m7"}]
    findings += [
        Finding(
            check="all_gather",
            machine=one,
            peer=other,
            ok=True,
            value=2.0,
            unit="MB/s",
            repeats=3,
            kind="gloo",
        )
        for pair in (("m5", "m0"), ("m6", "m1"))
        for one, other in (pair, pair[::-1])
    ]
    verdict = judge(findings, 1.5, shared=LEAVES)
    assert (verdict.suspects, verdict.shared) == ((), ("switch leaf-3",))


def test_a_sure_failure_is_no_switch() -> None:
    """A lost GPU accuses its machine, whatever its links do."""
    lost = Finding(check="gpu", machine="m2", ok=False, sure=True, detail="lost")
    verdict = judge([*ring(8, {"m2", "m3"}), lost], 1.5, shared=LEAVES)
    assert "m2" in verdict.suspects


def test_a_machine_that_computes_slowly_is_named_beside_a_slow_switch() -> None:
    """Its measurements alone have nothing to do with the switch."""
    products = [
        Finding(check="matmul", machine=f"m{at}", ok=True, value=9.0 if at == 2 else 1.0, unit="s", repeats=5)
        for at in range(8)
    ]
    verdict = judge([*ring(8, {"m2", "m3"}), *products], 1.5, shared=LEAVES)
    assert verdict.suspects == ("m2",)


@given(st.integers(7, 24), st.integers(2, 6), st.data())
def test_never_a_machine_of_a_switch_that_is_bad_as_a_whole(
    machines: int, per: int, data: st.DataObject
) -> None:
    """Wherever the switch is in the ring, and however many machines it has."""
    names = [f"m{at}" for at in range(machines)]
    leaves = {f"switch {at}": frozenset(names[at : at + per]) for at in range(0, machines, per)}
    several = {name: members for name, members in leaves.items() if 1 < len(members) < machines}
    chosen = data.draw(st.sampled_from(sorted(several)))
    verdict = judge(ring(machines, set(leaves[chosen])), 1.5, shared=several)
    assert not set(verdict.suspects) & leaves[chosen]
    if 2 * len(leaves[chosen]) <= machines:
        assert chosen in verdict.shared


def test_domains_are_those_of_the_policy_and_of_the_agents(tmp_path: Path) -> None:
    """Neither one that all machines share, nor one of a single machine."""
    file = tmp_path / "policy.yaml"
    file.write_text('detect: {network: {switches: {leaf-1: ["m0", "m1"], leaf-2: ["m2"]}}}')
    policy = Policy.load(file)
    machines = [
        Machine(
            name=f"m{at}",
            state=MachineState.ACTIVE,
            incarnation="i",
            location={"room": "r1", "rack": f"k{at // 2}"},
        )
        for at in range(4)
    ]
    assert domains.known(machines, policy) == {
        "rack k0": frozenset({"m0", "m1"}),
        "rack k1": frozenset({"m2", "m3"}),
        "switch leaf-1": frozenset({"m0", "m1"}),
    }


def test_of_two_domains_with_the_same_machines_one_is_named() -> None:
    """The smaller, which explains as much."""
    found = domains.shared(
        {"m0", "m1"}, {"rack k0": frozenset({"m0", "m1", "m2"}), "switch s": frozenset({"m0", "m1"})}, 0.5
    )
    assert found == {"switch s": frozenset({"m0", "m1"})}
