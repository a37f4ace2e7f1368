"""The side of a split that is cut off, and how long a machine may be silent."""

from __future__ import annotations

import pytest

from holdfast.models.agent import Contact
from holdfast.policies.config.policy import Policy
from holdfast.policies.detect import silence
from holdfast.policies.detect.silence import AskedPeer, why_cut_off

POLICY = Policy.load().gateway
SILENT_S = 3.0
LEASE_S = 5.0
IN_CONTACT = Contact(heard_s=0.3, since_s=100.0)
DEAF = Contact(heard_s=2.9, since_s=100.0)
JUST_BACK = Contact(heard_s=0.3, since_s=1.0)


def asked(*contacts: Contact | None, reached: bool = True) -> list[AskedPeer]:
    return [AskedPeer(name=f"m{at}", reached=reached, contact=each) for at, each in enumerate(contacts)]


def test_others_reach_the_gateway() -> None:
    """One is enough: it is this machine that is cut off."""
    assert "answers m1" in why_cut_off(SILENT_S, LEASE_S, asked(DEAF, IN_CONTACT, DEAF))


def test_no_machine_answers_at_all() -> None:
    """Then all of this machine's network is gone."""
    assert "neither the gateway nor any of 2" in why_cut_off(
        SILENT_S, LEASE_S, asked(None, None, reached=False)
    )


@pytest.mark.parametrize(
    "answers",
    [
        [],
        asked(DEAF, DEAF, DEAF),
        asked(JUST_BACK, DEAF),
        asked(None, reached=False) + asked(DEAF),
        asked(None, reached=False) + asked(None),
    ],
    ids=["no peer to ask", "all deaf", "a gateway that comes back", "one out of reach", "one refuses"],
)
def test_the_gateway_may_be_away(answers: list[AskedPeer]) -> None:
    """Training goes on without it."""
    assert why_cut_off(SILENT_S, LEASE_S, answers) == ""


@pytest.mark.parametrize("heartbeat_s", [0.1, 0.5, 2.0, 10.0])
def test_contact_of_others_is_distinguished_at_every_heartbeat(heartbeat_s: float) -> None:
    """When the lease asks, one that hears is younger than half the silence, one that lost it at once is older."""
    lease_s = silence.lease_s(heartbeat_s, POLICY)
    silent_s = silence.ASK_SHARE * lease_s
    in_contact = Contact(heard_s=heartbeat_s, since_s=1000.0)
    deaf = Contact(heard_s=silent_s - heartbeat_s, since_s=1000.0)
    assert why_cut_off(silent_s, lease_s, asked(in_contact))
    assert not why_cut_off(silent_s, lease_s, asked(deaf))


@pytest.mark.parametrize(
    ("silent_s", "contact", "cut_off"),
    [
        (60.0, Contact(heard_s=0.3, since_s=4.9), False),
        (60.0, Contact(heard_s=0.3, since_s=5.0), True),
        (60.0, Contact(heard_s=2.6, since_s=8.0), False),
        (4.0, Contact(heard_s=0.3, since_s=3.9), False),
    ],
    ids=["back for less than a lease", "back for a lease", "away again", "as long as the silence"],
)
def test_who_is_cut_off_while_the_gateway_is_away_learns_it(
    silent_s: float, contact: Contact, cut_off: bool
) -> None:
    """It has a lease to reach a gateway that is back."""
    assert bool(why_cut_off(silent_s, LEASE_S, asked(contact))) == cut_off


@pytest.mark.parametrize("heartbeat_s", [0.1, 0.5, 2.0, 10.0])
def test_a_machine_has_ended_its_ranks_before_its_lease_is_over(heartbeat_s: float) -> None:
    """Asking and the answers leave at least a fifth of the lease."""
    lease_s = silence.lease_s(heartbeat_s, POLICY)
    assert silence.window_s(heartbeat_s, POLICY) < silence.ASK_SHARE * lease_s
    assert (silence.ASK_SHARE + silence.ANSWER_SHARE) * lease_s <= 0.8 * lease_s


def test_who_receives_from_no_machine_is_alone() -> None:
    """With one machine there is nothing to compare."""
    assert silence.is_alone([6.0, 6.1, 7.0], 2.5)
    assert not silence.is_alone([6.0, 0.1, 7.0], 2.5)
    assert not silence.is_alone([], 2.5)


@pytest.mark.parametrize(
    ("longest_s", "lease_s"),
    [
        (0.0, 5.0),
        (0.5, 5.0),
        (1.5, 5.0),
        (1.6, 10.0),
        (2.5, 10.0),
        (2.6, 20.0),
        (20.5, 20.0),
        (20.6, 5.0),
        (3600.0, 5.0),
    ],
)
def test_a_machine_that_is_answered_late_has_a_longer_lease(longest_s: float, lease_s: float) -> None:
    """Up to the policy's longest; what no lease can cover was an outage, after which nothing is different."""
    assert silence.wanted_lease_s(0.5, POLICY, longest_s) == lease_s


NEVER = float("inf")


@pytest.mark.parametrize(
    ("others_late_s", "patience_s"),
    [
        ([NEVER] * 6, 5.0),
        ([1.0, *[NEVER] * 5], 5.0),
        ([1.0, 29.0, *[NEVER] * 4], 20.0),
        ([1.0, 31.0, *[NEVER] * 4], 5.0),
        ([1.0, 1.0, *[NEVER] * 7], 5.0),
        ([1.0], 5.0),
        ([], 5.0),
    ],
    ids=["none", "one flaps", "hosts are slow", "long ago", "few of many", "one of one", "no other"],
)
def test_who_is_silent_while_others_come_back_late_has_more_time(
    others_late_s: list[float], patience_s: float
) -> None:
    """Their common network is slow; a lease that is longer already stays."""
    assert silence.patience_s(5.0, others_late_s, POLICY) == patience_s
    assert silence.patience_s(40.0, others_late_s, POLICY) == 40.0


@pytest.mark.parametrize("longest_s", [0.0, 30.0, 64.0, 1000.0])
def test_no_lease_is_shorter_than_the_usual_one(longest_s: float) -> None:
    """Seldom heartbeats need long ones, whatever the policy's longest is."""
    assert silence.wanted_lease_s(60.0, POLICY, longest_s) >= silence.lease_s(60.0, POLICY)
