"""The cost of metadata for one rank of a large job, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import load_plan, planning
from holdfast.storage.checkpoints.format import boxes
from holdfast.storage.checkpoints.format.global_plan import plan_globally

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("ranks", "tensors"), [(1024, 100), pytest.param(10_240, 500, marks=pytest.mark.thorough)]
)
def test_a_rank_plans_its_load_of_little(ranks: int, tensors: int, tmp_path: Path) -> None:
    """Of a fully sharded state, at another world size: two seconds of work and 300 MiB at most."""
    table = plan_globally(*planning.sharded_with_own(ranks, tensors)).table()
    file = tmp_path / "boxes.bin"
    file.write_bytes(boxes.pack(table, "1.1"))
    assert file.stat().st_size < 100_000
    found = load_plan.measured(file, tensors, 5, ranks * 3 // 4, ranks)
    assert found["reads"] >= 2 * tensors
    assert found["mib"] < 300
    assert found["cpu_s"] < 2
