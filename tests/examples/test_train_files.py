"""The example that reads files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.models.job import JobSpec
from tests.e2e.waiting import free_ports

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.torch
def test_it_trains_on_all_samples_without_an_agent(tmp_path: Path) -> None:
    """Two ranks; of 2 x 3 hours that both sources have, and one that only one has."""
    for source, hours in (("web", 4), ("code", 3)):
        for hour in range(hours):
            path = tmp_path / source / f"dt=2026-11-24/hour={hour:02}/part.jsonl"
            path.parent.mkdir(parents=True)
            path.write_text("".join(json.dumps({"x": at / 50, "y": 3 * at / 50}) + "\n" for at in range(50)))
    port = str(free_ports(1))
    ranks = [
        subprocess.Popen(
            [sys.executable, EXAMPLES / "train_files.py", "--data", tmp_path],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [each.communicate(timeout=200)[0] for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0]
    assert outputs == ["5 steps, 300 samples\n", ""]


def test_its_job_file_is_valid() -> None:
    yaml = pytest.importorskip("yaml")
    spec = yaml.safe_load((EXAMPLES / "train_files.yaml").read_text())
    assert spec["script"] == "train_files.py"
    assert "machines" in spec
    assert set(spec) <= {*JobSpec.model_fields, "machines"}
