"""Silence of a replica: counted from its first report on, and only while its agent is awake."""

from __future__ import annotations

from holdfast.agent.roles.silence import Silence


def looks(silent: Silence, *seen: tuple[int, float]) -> list[bool]:
    return [silent.over(reported_at, now) for reported_at, now in seen]


def test_one_that_says_nothing_from_then_on_hangs() -> None:
    silent = Silence(10.0)
    assert not any(silent.over(7, float(now)) for now in range(11))
    assert silent.over(7, 11.0)
    assert silent.why == "no roles.alive() for 11.0 s (restart.silent_s = 10)"


def test_a_long_start_is_no_silence() -> None:
    assert not any(Silence(10.0).over(0, float(now)) for now in range(0, 1000, 10))


def test_each_word_counts_from_the_beginning_whatever_the_clock_says() -> None:
    """The file's time steps back with the host's clock: any change of its time counts as a sign of life."""
    silent = Silence(10.0)
    assert not any(silent.over(1000 - now // 8, float(now)) for now in range(100))


def test_a_host_that_stood_still_blames_no_one() -> None:
    silent = Silence(10.0)
    assert looks(silent, (7, 0.0), (7, 1.0), (7, 3600.0), (8, 3601.0)) == [False] * 4
