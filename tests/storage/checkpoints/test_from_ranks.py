"""Saved under one layout, loaded under another by the same number of ranks, from one another's shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.checkpoints.test_resharding import ranks

pytestmark = [pytest.mark.e2e, pytest.mark.torch]

LAYOUTS = ["ddp", "fsdp", "hsdp", "tp", "two_d"]
BODIES = "tests.storage.checkpoints.resharded"


def test_every_layout_loads_what_every_other_saved(tmp_path: Path) -> None:
    """Bit for bit, weights and optimizer; the own shard is refused where it is not enough, and used where it is."""
    pairs = [(saved, loaded) for saved in LAYOUTS for loaded in LAYOUTS]
    told = ranks(4, f"{BODIES}:all_pairs", folder=tmp_path, pairs=pairs, round_nbytes=1)
    for saved, loaded in pairs:
        each = [found[f"{saved}->{loaded}"] for found in told]
        enough = saved in ("ddp", loaded)
        assert [covered for covered, _ in each] == [enough] * 4, f"{saved} -> {loaded}"
        assert (sum(nbytes for _, nbytes in each) == 0) is enough, f"{saved} -> {loaded}: {each}"
