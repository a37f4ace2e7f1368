"""The reason that a person gives for an act by hand."""

from __future__ import annotations

import pytest

from holdfast.testing.gateway_kit import Kit


@pytest.mark.parametrize("reason", ["", "  \n"])
async def test_an_eviction_without_a_reason_is_refused(kit: Kit, reason: str) -> None:
    """As the command line refuses it; without the field there is a reason."""
    await kit.running_job()
    answer = await kit.post("/v1/machines/m0/evict", {"reason": reason}, status=422)
    assert "body.reason" in answer["message"]
    assert "say why" in answer["message"]
    assert kit.incidents() == []
    await kit.post("/v1/machines/m0/evict", {})
    assert [each.machine for each in kit.incidents()] == ["m0"]
