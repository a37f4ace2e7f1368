"""Saves and restores of a GPU's state at the speed of a plain copy, beside steps that compute on."""

from __future__ import annotations

import shutil
import statistics
import tempfile

import pytest

from tests.gpu.saving import SHARED_MEMORY, child, report, say

SIZES = ((1, 16, 0.2), (1, 1, None), (4, 16, 0.2))
"""GiB of a state, MiB of each of its tensors, and seconds of a step beside its saves, if any."""
ROUNDS, DEADLINE_S = 2, 120.0


@pytest.mark.parametrize(("gib", "mib", "step_s"), SIZES)
def test_what_saves_and_restores_take(gib: int, mib: int, step_s: float | None) -> None:
    """Printed beside a plain copy; fails only where nothing is saved: times are the benchmark's to judge."""
    free = shutil.disk_usage(SHARED_MEMORY).free
    if free < 2.2 * (gib << 30):
        pytest.skip(f"two buffers of {gib} GiB need more than the {free >> 30} GiB of shared memory")
    with tempfile.TemporaryDirectory(prefix="holdfast-gpu-", dir=SHARED_MEMORY) as folder:
        found = child(
            "benchmarks.gpu_saves", [folder, gib, mib, ROUNDS, *([step_s] if step_s else [])], DEADLINE_S
        )
    report(f"speed-{gib}-{mib}", found)
    median = {
        name: statistics.median(each)
        for name, each in found.items()
        if name.endswith("_s") and isinstance(each, list)
    }
    gigabytes = found["nbytes"] / 1e9
    say(
        f"| {gib} GiB in {found['tensors']} tensors | call {1000 * median['call_s']:.2f} ms "
        f"| copy {gigabytes / median['copy_s']:.1f} GB/s | plain {gigabytes / median['plain_to_host_s']:.1f} GB/s "
        f"| ratio {median['plain_to_host_s'] / median['copy_s']:.2f} | complete after {median['whole_s']:.2f} s "
        f"| restore {gigabytes / median['restore_s']:.1f} GB/s "
        f"| plain {gigabytes / median['plain_to_device_s']:.1f} GB/s |"
    )
    for beside in found["beside"]:
        held, lost = statistics.median(beside["held"]), statistics.median(beside["lost"])
        say(f"  steps of {beside['step_s']:.2f} s: held up {held:.2f} %, lost {lost:.2f} %: {beside}")
        assert beside["saved"] > 0
