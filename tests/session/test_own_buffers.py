"""When a rank may overwrite its own copy, with one buffer and with two."""

from __future__ import annotations

from holdfast.session.own_buffers import COPY_LAG_S, OwnBuffers

FIRST, SECOND = (1, 7), (1, 8)


def test_the_first_save_goes_over_nothing() -> None:
    """From scratch there is nothing to lose: no peer is waited for."""
    own = OwnBuffers(single=True)
    assert own.late(0.1)
    assert own.may_begin(0.0)
    assert own.in_place


def test_a_single_buffer_waits_for_all_peers() -> None:
    """A common save is overwritten only when the peers of all ranks have it."""
    own = OwnBuffers(single=True)
    own.common(FIRST, 100.0, copied=False, late=False)
    assert own.keeps == FIRST
    assert not own.may_begin(100.0 + COPY_LAG_S)
    own.copied()
    assert own.may_begin(100.0)
    assert own.in_place


def test_late_peers_cost_a_second_buffer() -> None:
    """After some time a save begins all the same, and not over what is kept."""
    own = OwnBuffers(single=True)
    own.common(FIRST, 100.0, copied=False, late=False)
    assert own.may_begin(100.1 + COPY_LAG_S)
    assert not own.in_place
    own.common(SECOND, 120.0, copied=False, late=True)
    assert own.keeps == SECOND
    assert not own.may_begin(121.0)


def test_what_a_rank_resumes_from_is_not_overwritten_before_the_peer_has_it() -> None:
    """The peer may be another one now."""
    own = OwnBuffers(single=True)
    own.restored(FIRST, 50.0)
    assert not own.may_begin(51.0)
    own.copied()
    assert own.in_place


def test_two_buffers_never_wait() -> None:
    """A state that all peers have stays for a while when a newer one is late."""
    own = OwnBuffers(single=False)
    own.restored(FIRST, 50.0)
    assert own.may_begin(50.0)
    assert not own.in_place
    own.common(FIRST, 100.0, copied=True, late=False)
    own.common(SECOND, 101.0, copied=False, late=False)
    assert own.keeps == FIRST
    assert not own.late(100.0 + COPY_LAG_S)
    assert own.late(100.1 + COPY_LAG_S)


def test_ranks_keep_the_same_save_whatever_their_own_clocks_say() -> None:
    """One heard of the save just after the peers were late, the other just before: what counts is what all voted."""
    early, late = OwnBuffers(single=False), OwnBuffers(single=False)
    for now in (100.0, 101.0 + COPY_LAG_S):
        for own, lag in ((early, -0.5), (late, 0.5)):
            own.common((1, int(now)), now + lag, copied=now == 100.0, late=False)
    assert early.keeps == late.keeps == (1, 100)
    for own in (early, late):
        own.common(SECOND, 102.0 + COPY_LAG_S, copied=False, late=True)
    assert early.keeps == late.keeps == SECOND
