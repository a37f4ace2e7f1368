"""Reports of failed saves, by place, and when they end."""

from __future__ import annotations

from holdfast.agent.checkpoints.setbacks import Setbacks
from holdfast.models.setback import Place, Setback


def test_one_word_for_each_place_over_all_ranks() -> None:
    """Counted together, since the first, with the newest reason; a rank that goes on well hides no other."""
    times = iter([10.0, 20.0, 30.0])
    setbacks = Setbacks(lambda: next(times))
    setbacks.failed("gpt", 1, Place.DISK, 0, OSError("full"))
    setbacks.failed("gpt", 1, Place.DISK, 0, OSError("still full"))
    setbacks.failed("gpt", 1, Place.DISK, 1, OSError("x" * 1000))
    setbacks.failed("gpt", 1, Place.S3, 1, "away")
    disk, s3 = setbacks.summaries("gpt", 1)
    assert disk == Setback(place=Place.DISK, count=3, since=10.0, reason="x" * 400)
    assert (s3.place, s3.count, s3.reason) == (Place.S3, 1, "away")
    setbacks.went_well("gpt", 1, Place.DISK, 0)
    assert [each.count for each in setbacks.summaries("gpt", 1)] == [1, 1]
    for place in Place:
        setbacks.went_well("gpt", 1, place, 1)
    assert setbacks.summaries("gpt", 1) == ()


def test_a_new_epoch_starts_from_zero_and_an_old_one_changes_nothing() -> None:
    """The outcome of a late copy of an earlier epoch is no news of the present one."""
    setbacks = Setbacks()
    setbacks.failed("gpt", 1, Place.DISK, 0, "full")
    assert setbacks.summaries("gpt", 2) == ()
    setbacks.failed("gpt", 2, Place.S3, 0, "away")
    setbacks.failed("gpt", 1, Place.DISK, 0, "late")
    setbacks.went_well("gpt", 1, Place.S3, 0)
    assert [each.place for each in setbacks.summaries("gpt", 2)] == [Place.S3]
    assert setbacks.summaries("gpt", 1) == setbacks.summaries("other", 1) == ()
