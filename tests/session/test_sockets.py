"""What ranks tell each other of saves needs a few sockets for each rank, however many there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.session.harness import REPOSITORY

pytestmark = [pytest.mark.torch]

EXCHANGES = 6
THEIRS = 3
"""One that listens, and one to each neighbour."""


@pytest.mark.parametrize(
    "world", [2, 5, *(pytest.param(many, marks=pytest.mark.thorough) for many in (3, 8, 16, 64))]
)
def test_a_rank_has_as_few_sockets_in_a_large_job_as_in_a_small_one(world: int) -> None:
    """And all ranks learn the same of every call: of six, two lack one rank's save."""
    script = REPOSITORY / "tests" / "session" / "scripts" / "sockets.py"
    ran = subprocess.run(
        [sys.executable, str(script), str(world), str(EXCHANGES)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    assert sorted(each["rank"] for each in told) == list(range(world))
    assert max(each["sockets"] for each in told) <= THEIRS, told
    assert {each["common"] for each in told} == {EXCHANGES - 2}
