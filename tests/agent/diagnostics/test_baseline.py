"""A machine's earlier measurements, reported with the present ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.agent.diagnostics import baseline
from holdfast.models.alert import Finding


def measured(value: float, **more: float) -> Finding:
    """A transfer rate."""
    return Finding(
        check="all_gather",
        machine="m0",
        peer="m1",
        ok=True,
        value=value,
        unit="MB/s",
        **{"repeats": 5, **more},
    )


def test_earlier_values_are_given_with_the_next(tmp_path: Path) -> None:
    """Their median and how many; the first has none."""
    path = tmp_path / "baseline.json"
    results = [baseline.compared([measured(value)], path)[0] for value in (100.0, 104.0, 96.0, 100.0)]
    assert [(each.usual, each.usual_of) for each in results] == [
        (None, 0),
        (100.0, 1),
        (102.0, 2),
        (100.0, 3),
    ]


def test_a_machine_that_became_slow_does_not_get_used_to_it(tmp_path: Path) -> None:
    """However often it is measured; nor do busy or few measurements count."""
    path = tmp_path / "baseline.json"
    for _ in range(6):
        baseline.compared([measured(100.0)], path)
    for _ in range(100):
        found = baseline.compared([measured(50.0), measured(99.0, busy=0.9), measured(99.0, repeats=1)], path)
    assert (found[0].usual, found[0].usual_of) == (100.0, 6)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 5}', '{"a": ["x"]}', "\x00"])
def test_a_damaged_file_is_no_baseline(tmp_path: Path, text: str) -> None:
    """The check goes on, and begins a new one."""
    path = tmp_path / "baseline.json"
    path.write_text(text)
    (found,) = baseline.compared([measured(100.0)], path)
    assert found.usual is None
    assert baseline.compared([measured(100.0)], path)[0].usual == 100.0
