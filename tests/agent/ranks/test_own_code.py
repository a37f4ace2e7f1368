"""Distinguish the job's own files from libraries."""

from __future__ import annotations

import pytest

from holdfast.agent.ranks import exits
from holdfast.agent.ranks.own_code import is_own


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/job/train.py", True),
        ("/job/src/model/attention.py", True),
        ("/job/.venv/lib/python3.11/site-packages/torch/nn/modules/module.py", False),
        ("/job/venv/lib/python3/dist-packages/numpy/core/multiarray.py", False),
        ("/jobs/train.py", False),
        ("/opt/venv/lib/python3.11/site-packages/torch/serialization.py", False),
    ],
)
def test_libraries_in_the_jobs_folder_are_not_its_own(path: str, own: bool) -> None:
    """An environment is often made beside the script."""
    assert is_own(path, "/job") is own


def test_code_that_is_run_where_libraries_lie_is_its_own() -> None:
    """Only its place below the job's folder counts."""
    folder = "/opt/venv/lib/python3.11/site-packages/trainer"
    assert is_own(f"{folder}/train.py", folder)


def test_an_assertion_of_a_library_in_the_jobs_environment_blames_no_code() -> None:
    """Its place in the log is the script's line that called it, or none."""
    library = '  File "/job/.venv/lib/python3.11/site-packages/torch/optim/adam.py", line 9, in step\n'
    head, end = "Traceback (most recent call last):\n", "    assert ready\nAssertionError\n"
    assert exits.evidence(1, None, f"{head}{library}{end}", "/job")["user_frame"] is None
    script = '  File "/job/train.py", line 4, in main\n'
    assert (
        exits.evidence(1, None, f"{head}{script}{library}{end}", "/job")["user_frame"] == "train.py:4 in main"
    )
