"""Checkpoints that stay in S3; none goes away while something refers to it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.checkpoint import RemoteCheckpoint, Retention
from holdfast.policies.restore.retention import keep

GRACE_S = 100.0


def at(step: int, epoch: int = 1, saved_at: float | None = None, suspect: bool = False) -> RemoteCheckpoint:
    return RemoteCheckpoint(
        job="gpt",
        step=step,
        epoch=epoch,
        world_size=2,
        key=f"step-{step}-e{epoch}/",
        saved_at=float(step if saved_at is None else saved_at),
        suspect=suspect,
    )


def steps(kept: dict[str, str]) -> list[int]:
    return sorted(int(key.split("-")[1]) for key in kept)


def test_the_last_ones_are_kept() -> None:
    """And no others, once they are old enough."""
    held = [at(step) for step in range(10, 100, 10)]
    assert steps(keep(held, Retention(keep_last=2), now=1e6, grace_s=GRACE_S)) == [80, 90]


def test_every_m_th_step_and_pins_are_kept_for_ever() -> None:
    """With their reasons; pins go first."""
    held = [at(step) for step in range(10, 110, 10)]
    rules = Retention(keep_last=1, keep_every=40)
    kept = keep(held, rules, pinned={"step-30-e1/", "step-40-e1/"}, now=1e6, grace_s=GRACE_S)
    assert steps(kept) == [30, 40, 80, 100]
    assert kept["step-40-e1/"] == kept["step-30-e1/"] == "pinned"
    assert kept["step-80-e1/"] == "every 40 steps"


def test_where_multiples_are_not_there_the_next_one_is_kept() -> None:
    """A suspect one is not; nor what comes before the first multiple."""
    held = [at(step) for step in (21, 43, 61, 83, 101)] + [at(41, suspect=True)]
    rules = Retention(keep_last=1, keep_every=40)
    assert steps(keep(held, rules, now=1e6, grace_s=GRACE_S)) == [43, 83, 101]


def test_the_newest_epoch_counts_first() -> None:
    """After a restore of step 20 the old epoch's step 90 is history."""
    held = [at(20), at(90), at(30, epoch=2), at(40, epoch=2)]
    assert steps(keep(held, Retention(keep_last=2), now=1e6, grace_s=GRACE_S)) == [30, 40]


def test_suspect_ones_do_not_push_out_good_ones() -> None:
    """And stay as long as they are newer than what may be restored."""
    held = [at(10), at(20), at(30, suspect=True), at(40, suspect=True)]
    assert steps(keep(held, Retention(keep_last=1), now=1e6, grace_s=GRACE_S)) == [20, 30, 40]
    assert steps(keep([*held, at(50)], Retention(keep_last=1), now=1e6, grace_s=GRACE_S)) == [50]


checkpoints = st.lists(
    st.builds(
        at,
        st.integers(1, 40),
        st.integers(1, 4),
        st.integers(0, 1000).map(float),
        st.booleans(),
    ),
    max_size=20,
    unique_by=lambda each: each.key,
)


@given(checkpoints, st.integers(1, 4), st.integers(0, 1000), st.integers(0, 99))
def test_what_an_upload_under_way_may_refer_to_is_kept(
    held: list[RemoteCheckpoint], last: int, now: int, ago: int
) -> None:
    """Whatever was the newest complete one at any moment of the grace period."""
    then = now - ago
    complete = [each for each in held if each.saved_at <= then]
    if complete:
        base = max(complete, key=lambda each: (each.epoch, each.step))
        present = [each for each in held if each.saved_at <= now]
        assert base.key in keep(present, Retention(keep_last=last), now=now, grace_s=GRACE_S)


@given(checkpoints, st.integers(1, 4))
def test_something_to_restore_is_always_left(held: list[RemoteCheckpoint], last: int) -> None:
    """As many good ones as the rule keeps, or all that there are."""
    kept = keep(held, Retention(keep_last=last), now=1e6, grace_s=GRACE_S)
    good = [each for each in held if not each.suspect]
    assert sum(each.key in kept for each in good) == min(last, len(good))
