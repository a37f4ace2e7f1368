"""A shard file that is cut or changed anywhere is refused, or holds what was saved: never anything else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.errors import CheckpointError
from holdfast.session.restore import restore
from holdfast.storage.checkpoints.save import buffers
from tests.session.kinds.compare import difference
from tests.session.kinds.tiers import site
from tests.session.kinds.values import Holder

pytestmark = pytest.mark.torch


def _value(step: int) -> Any:
    return {"large": torch.arange(20_000) + step, "small": torch.ones(3), "plain": [step, "text", b""]}


def _places(header: buffers.ShardHeader) -> Iterator[int]:
    """Bytes in every region: the header's own, its padding, the metadata, the items and what lies between."""
    yield from range(200)
    regions = [
        (200, buffers.HEADER_BYTES),
        (header.meta_offset, header.meta_offset + header.meta_nbytes),
        (header.payload_offset, header.payload_offset + header.payload_nbytes),
        (header.payload_offset, header.payload_offset + 2048),
        (header.payload_offset + header.payload_nbytes - 2048, header.payload_offset + header.payload_nbytes),
        (header.meta_offset + header.meta_nbytes - 8, header.payload_offset + 8),
    ]
    places = random.Random(5)
    for first, last in regions:
        yield from (places.randrange(first, last) for _ in range(40))


def test_no_changed_byte_brings_other_values(tmp_path: Path) -> None:
    """Each byte is turned over, and the file cut there: an error of the checkpoint's, or the values that were saved."""
    refused = 0
    with site(tmp_path) as place:
        state = {"extra": Holder(_value)}
        session = place.begin(state)
        for step in (1, 2):
            state["extra"].advance(step)
            place.save(session, state, step)
        shard = place.agent.shard(0, 2)
        whole = shard.read_bytes()
        header = buffers.require_header(shard)
        changes = [whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :] for at in _places(header)]
        changes += [whole[:at] for at in list(_places(header))[::8]]
        for number, content in enumerate(changes):
            shard.write_bytes(content)
            fresh = {"extra": Holder(_value)}
            try:
                restore(fresh, shard, 0)
            except CheckpointError:
                refused += 1
                assert not difference(_value(0), fresh["extra"].value, f"refused, and changed ({number})")
            else:
                assert not difference(_value(2), fresh["extra"].value, f"change {number}")
    assert refused > 0.6 * len(changes)
