"""Wrong thresholds are refused at start, with their line and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import SettingsError
from holdfast.policies.config.policy import Policy


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("detect:\n  gpu:\n    mises: 3\n", ["line 3", "detect.gpu.mises is not a known key", "misses"]),
        ("detect:\n  gpus: {}\n", ["line 2", "detect.gpus is not a known key", "network"]),
        (
            "detect:\n  gpu:\n    misses: 0\n",
            ["line 3", "detect.gpu.misses = 0", "greater than or equal to 1"],
        ),
        ("detect:\n  intervals:\n    gpu_s: ten\n", ["line 3", "detect.intervals.gpu_s = 'ten'", "number"]),
        (
            "detect:\n  intervals:\n    host_s: 0\n",
            ["line 3", "detect.intervals.host_s = 0", "greater than 0"],
        ),
        (
            "detect:\n  network:\n    loss_share: 1.5\n",
            ["line 3", "loss_share = 1.5", "less than or equal to 1"],
        ),
        ("detect:\n  network:\n    switches: [a]\n", ["line 3", "detect.network.switches"]),
        ("detect:\n  throughput:\n    slower: 0.5\n", ["line 3", "slower = 0.5", "greater than 1"]),
        ("detect: {storage: {disk_free_bytes: -1}}\n", ["line 1", "disk_free_bytes = -1"]),
        ("detect:\n  host:\n    misses: 3s\n", ["line 3", "detect.host.misses = '3s'", "integer"]),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, parts: list[str]) -> None:
    """File, line, key, value, and what was expected."""
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        Policy.load(path)
    for part in [str(path), *parts]:
        assert part in str(caught.value)


def test_a_file_changes_only_what_it_names(tmp_path: Path) -> None:
    """Deep inside the section too."""
    path = tmp_path / "policy.yaml"
    path.write_text("detect:\n  network:\n    switches: {leaf-1: ['node-*']}\n")
    found, packaged = Policy.load(path).detect, Policy.load().detect
    assert found.network.switches == {"leaf-1": ("node-*",)}
    assert found.network.loss_share == packaged.network.loss_share
    assert found.gpu == packaged.gpu
