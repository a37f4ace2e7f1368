"""Steps that the kill loop counts as productive."""

from __future__ import annotations

import pytest

from benchmarks.bench_kill_loop import productive
from benchmarks.steps import Line


def made(first: int, last: int, since: float, every_s: float = 1.0, share: float = 1.0) -> list[Line]:
    """Steps one after the other."""
    return [Line(0, 1, step, since + (step - first) * every_s, share) for step in range(first, last + 1)]


def test_a_pause_is_lost_and_nothing_else() -> None:
    """Killed at 10, back at 15: of the 10 s to 20, the five from 15 on made steps."""
    assert productive([*made(1, 10, 1.0), *made(11, 15, 16.0)], 10.0, 20.0) == pytest.approx(50.0)


def test_steps_that_are_done_again_do_not_count() -> None:
    lines = [*made(1, 10, 1.0), *made(6, 10, 11.0), *made(11, 15, 16.0)]
    assert productive(lines, 10.0, 20.0) == pytest.approx(50.0)


def test_steps_of_fewer_ranks_count_for_less() -> None:
    """Seven of eight go on at once, in the same time: an eighth is lost."""
    lines = [*made(1, 30, 1.0), *made(31, 40, 31.0, share=7 / 8)]
    assert productive(lines, 30.0, 40.0) == pytest.approx(87.5)
