"""Ranks' messages about saves need a few sockets for each rank, however many ranks there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from holdfast.session.agreement import MOST_BY_FIRST
from tests.session.harness import REPOSITORY

pytestmark = [pytest.mark.torch]

EXCHANGES = 6
THEIRS = 3
"""One that listens, and one to each neighbour."""


@pytest.mark.parametrize(
    ("world", "earlier"),
    [
        *((2, 0), (5, 0), (5, 1)),
        *(pytest.param(many, 0, marks=pytest.mark.thorough) for many in (3, 8, 16, MOST_BY_FIRST, 64)),
        *(pytest.param(many, many - 1, marks=pytest.mark.thorough) for many in (3, 8)),
    ],
)
def test_a_rank_has_few_sockets(world: int, earlier: int) -> None:
    """In a large job as few as in a small one, whose ranks have one to the first each; beside ranks that do not know
    that, too. And all ranks learn the same of every call: of six, two lack one rank's save."""
    script = REPOSITORY / "tests" / "session" / "scripts" / "sockets.py"
    ran = subprocess.run(
        [sys.executable, str(script), str(world), str(EXCHANGES), str(earlier)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    reports = [json.loads(line) for line in ran.stdout.splitlines()]
    assert sorted(each["rank"] for each in reports) == list(range(world))
    by_first = world <= MOST_BY_FIRST and not earlier
    assert {each["by_first"] for each in reports} == {by_first}
    for each in reports:
        theirs = THEIRS + by_first * (world if each["rank"] == 0 else 1)
        assert each["sockets"] <= theirs, reports
    assert {each["common"] for each in reports} == {EXCHANGES - 2}
