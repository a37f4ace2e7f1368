"""Distinguish a state that cannot be loaded from a crash of user code, a lost peer and a store that is away."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.policies.classify.unloadable import reason


@pytest.mark.parametrize(
    ("reported", "why"),
    [
        ({"error_type": "DamagedError", "message": "bytes"}, "bytes"),
        ({"error_type": "CheckpointError", "message": "model.w: no", "restoring": True}, "model.w: no"),
        ({"error_type": "KeyError", "message": "'step'", "restoring": True}, "KeyError: 'step'"),
        (
            {
                "error_type": "CheckpointException",
                "message": "CheckpointException ranks:dict_keys([0])",
                "restoring": True,
            },
            "CheckpointException: CheckpointException ranks:dict_keys([0])",
        ),
        (
            {
                "error_type": "RuntimeError",
                "message": "Error(s) in loading state_dict for Net",
                "restoring": True,
            },
            "RuntimeError: Error(s) in loading state_dict for Net",
        ),
        (None, ""),
        ({"error_type": "KeyError", "message": "'step'"}, ""),
        ({"error_type": "CheckpointError", "message": "cannot be saved"}, ""),
        ({"error_type": "UnavailableError", "message": "S3", "restoring": True}, ""),
        (
            {
                "error_type": "CheckpointException",
                "message": "rank 1: UnavailableError: S3",
                "restoring": True,
            },
            "",
        ),
        ({"error_type": "RuntimeError", "message": "CUDA out of memory", "restoring": True}, ""),
        # As our loader reports what fails while it makes room, on this rank and on the others.
        (
            {
                "error_type": "CheckpointError",
                "message": "step 40 in the ranks' shards: CUDA out of memory. Tried to allocate 2.00 GiB",
                "restoring": True,
            },
            "",
        ),
        (
            {
                "error_type": "CheckpointError",
                "message": "rank 3: shard /dev/shm/a.shard: CUDA error: uncorrectable ECC error encountered",
                "restoring": True,
            },
            "",
        ),
        ({"error_type": "ValueError", "message": "Connection closed by peer [::1]", "restoring": True}, ""),
    ],
)
def test_what_a_rank_reported(reported: dict[str, Any] | None, why: str) -> None:
    """Only what came of loading, and is about the state."""
    assert reason(reported) == why
