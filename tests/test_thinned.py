"""An error that repeats is logged now and then."""

from __future__ import annotations

import io
import logging

import pytest

from holdfast import thinned
from holdfast.clock import FakeClock
from holdfast.thinned import Thinned


class Log:
    """A logger of its own, with the filter, and what it wrote."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._written = io.StringIO()
        self.filter = Thinned(60.0, self.clock.monotonic)
        handler = logging.StreamHandler(self._written)
        handler.addFilter(self.filter)
        self.to = logging.Logger("ours")
        self.to.addHandler(handler)

    @property
    def lines(self) -> list[str]:
        return self._written.getvalue().splitlines()


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_warning_that_repeats_is_written_once_a_minute_with_its_number(log: Log) -> None:
    """A ledger that is away for an hour is a few lines in each loop, not thousands."""
    for _ in range(61):
        log.to.warning("leadership: %s", "database is locked")
        log.clock.advance(1.0)
    assert log.lines == [
        "leadership: database is locked",
        "leadership: database is locked (59 more since the last such line)",
    ]


def test_other_lines_are_written(log: Log) -> None:
    """Of another text, level or error; and whatever is no warning."""
    for _ in range(2):
        log.to.warning("m0")
        log.to.warning("m1")
        log.to.error("m0")
        log.to.info("m0")
    assert log.lines == ["m0", "m1", "m0", "m0", "m0"]


def test_one_traceback_of_equal_errors(log: Log) -> None:
    """Another error of the same loop has its own."""
    for error in (ValueError("a"), ValueError("a"), ValueError("b")):
        try:
            raise error
        except ValueError:
            log.to.exception("this round failed")
    assert [line for line in log.lines if line.startswith("ValueError")] == ["ValueError: a", "ValueError: b"]


def test_lines_that_all_differ_take_bounded_memory(log: Log) -> None:
    """And are all written."""
    for number in range(2 * thinned.MOST + 1):
        log.to.warning("alert %d", number)
    assert len(log.lines) == 2 * thinned.MOST + 1
    assert len(log.filter._lines) <= thinned.MOST
