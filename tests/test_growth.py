"""Estimates of the benchmark of large fleets for sizes that it did not try."""

import pytest

from benchmarks.growth import at_size, first_to_break


def test_a_cost_is_extended_along_its_line() -> None:
    """With what it costs in any case; a single measurement grows in proportion."""
    assert at_size({100: 2.0, 200: 3.0, 400: 5.0}, 10_000) == pytest.approx(101.0)
    assert at_size({100: 2.0}, 10_000) == pytest.approx(200.0)
    assert at_size({100: 2.0, 200: 1.0}, 10_000) == 0.0


def test_the_worst_is_named_first() -> None:
    """Costs within their limits are not named."""
    far = {"memory": (900.0, 500.0, "MiB"), "CPU": (4.0, 0.5, "cores"), "stop": (4.0, 5.0, "s")}
    summary = first_to_break(far, 10_000)
    assert summary.startswith(
        "At 10,000 machines first to break: CPU (4 cores, limit 0.5: 8.0 times); then memory"
    )
    assert "stop" not in summary
    assert "nothing of this" in first_to_break({"stop": (4.0, 5.0, "s")}, 10_000)
