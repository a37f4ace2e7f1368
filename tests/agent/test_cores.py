"""Cores that an agent reports."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.agent.cores import cores


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("150000 100000\n", 2),
        ("100 100000\n", 1),
        ("max 100000\n", 10_000),
        ("strange\n", 10_000),
        (None, 10_000),
    ],
)
def test_a_containers_limit_counts(tmp_path: Path, text: str | None, most: int) -> None:
    """Where it is less than what the process may run on; whatever is there that is no limit is none."""
    quota = tmp_path / "cpu.max"
    if text is not None:
        quota.write_text(text)
    assert cores(quota) == min(most, len(os.sched_getaffinity(0)))
